"""The temporary tensors of an optimizer's step, as the program in its file.

A line allocates a tensor for each parameter (`root = all`, `mask = all bool`), gives it another
name (`update = estimate`), casts it (`x = update in bfloat16`, none if it has that dtype) or drops
a name (`del root`). A storage is freed with its last name, and names live on from one parameter to
the next, as those of torch's functions. `5 times: a; b` repeats lines. A foreach program has a list
of tensors in each name: `once: a` allocates one for all of them, `each: a; b` or `each 3 times: a`
runs the lines for one parameter after another.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from modelbudget.architecture.optimizers import BITS, NUMBERS, OF_NUMBERS

PREFIX = re.compile(r"(once|each)? ?(?:(\d+) times)?: (.*)")


class Line(NamedTuple):
    """`name` is bound to `source` (another name), or to `numbers` in a dtype; dropped if neither.

    `dtype` "parameter" is that of the parameter; with a source, that of a cast.
    """

    name: str
    numbers: str = ""
    source: str = ""
    dtype: str = "parameter"


class Block(NamedTuple):
    """Lines, of foreach for all tensors at once, `once` for all, or for `each` alone."""

    lines: list[Line]
    over: str = ""
    times: int = 1


Allocate = Callable[[str, str], Any]
"""Makes a tensor of so many numbers (a word of `NUMBERS`) in a dtype."""


@cache
def parsed(text: str) -> tuple[Block, ...]:
    """Read a program. Raises ValueError."""
    return tuple(_block(line.split("#")[0].strip()) for line in text.splitlines())


def _block(text: str) -> Block:
    over, times, lines = "", 1, text
    if match := PREFIX.fullmatch(text):
        over, times, lines = match[1] or "", int(match[2] or 1), match[3]
    return Block([_line(line.strip()) for line in lines.split(";")], over, times)


def _line(text: str) -> Line:
    if dropped := re.fullmatch(r"del (\w+)", text):
        return Line(dropped[1])
    name, _, value = text.partition(" = ")
    if cast := re.fullmatch(r"(\w+) in (\w+)", value):
        return Line(name, source=cast[1], dtype=cast[2])
    *words, last = value.split()
    numbers, dtype = (" ".join(words), last) if last in BITS else (value, "parameter")
    if numbers in NUMBERS:
        return Line(name, numbers, dtype=dtype)
    if not re.fullmatch(r"\w+", value):
        raise ValueError(f"{text!r} is no line of a program; numbers: {', '.join(NUMBERS)}")
    return Line(name, source=value)


def run(lines: list[Line], names: dict[str, Any], allocate: Allocate, dtype_of: Callable) -> None:
    """Run lines for one parameter; `names` has what they are bound to."""
    for line in lines:
        if line.numbers:
            names[line.name] = allocate(line.numbers, line.dtype)
        elif line.source:
            source = names[line.source]
            is_cast = line.dtype not in ("parameter", dtype_of(source))
            names[line.name] = allocate("all", line.dtype) if is_cast else source
        else:
            del names[line.name]


class Cost(NamedTuple):
    """Bytes of the live tensors of one parameter, or of all.

    Of each number of it, and of them whatever its size: as multiples of the bytes of a number of a
    parameter, and in bytes.
    """

    of_number: int = 0
    bytes_of_number: int = 0
    fixed: int = 0
    fixed_bytes: int = 0

    def n_bytes(self, size, numbers, is_there=1):
        """Return the bytes for so many numbers of `size` bytes each."""
        fixed = self.fixed * size + self.fixed_bytes
        return (self.of_number * size + self.bytes_of_number) * numbers + fixed * is_there


Peak = tuple[Cost, Cost]
"""What is live at an allocation of the current tensor, and of the one before it."""


@cache
def peaks_of(text: str, is_of_all: bool) -> tuple[Peak, ...] | None:
    """Return the possible peaks of a program; `is_of_all`: of foreach, whose tensors are one.

    None where a tensor has other sizes than its parameter, or the peak other than these.
    """
    blocks = parsed(text)
    lines = [line for block in blocks for line in block.times * block.lines]
    if any(line.numbers not in ("", *OF_NUMBERS) for line in lines):
        return None
    if any(line.source and line.dtype != "parameter" for line in lines):
        return None
    if is_of_all and any(
        block.over == "each"
        or (not block.over and any(peak.numbers == "one" for peak in block.lines))
        for block in blocks
    ):
        return None
    names: dict[str, tuple] = {}
    peaks: list[Peak] = []
    for tensor in ("current",) if is_of_all else ("before", "current"):
        peaks.clear()  # those of the first tensor, without one before it, are no larger

        def allocate(numbers: str, dtype: str, tensor=tensor) -> tuple:
            made = object(), tensor, numbers, dtype
            live = {*names.values(), made}
            peaks.append((_cost(live, "current"), _cost(live, "before")))
            return made

        run(lines, names, allocate, lambda made: made[-1])
    return tuple(peak for peak in dict.fromkeys(peaks) if not _is_less(peak, peaks))


def _cost(live: set[tuple], tensor: str) -> Cost:
    cost = [0, 0, 0, 0]
    for _, of_tensor, numbers, dtype in live:
        if of_tensor == tensor:
            is_fixed = dtype != "parameter"
            place = 2 * (numbers == "one") + is_fixed
            cost[place] += BITS[dtype] // 8 if is_fixed else 1
    return Cost(*cost)


def _is_less(peak: Peak, peaks: list[Peak]) -> bool:
    """Whether another peak is at least as large whatever the sizes."""
    flat = sum(peak, ())
    return any(
        peak != other and all(x <= y for x, y in zip(flat, sum(other, ()), strict=True))
        for other in peaks
    )
