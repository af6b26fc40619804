"""Optimizers as data: what each keeps for a parameter tensor, from `configs/optimizers/`.

One file an optimizer, in a folder for each library; its name is that of the file. A file is read
when its optimizer is used.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce
from operator import mul
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from modelbudget.architecture.arithmetic import ceil_div, is_nothing, largest, positive
from modelbudget.architecture.run_values import bytes_of, exact_bytes
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict

FOLDER = CONFIGS / "optimizers"
SINGLE = 4
"""Bytes of a number in single precision."""
BITS = {"float32": 32, "int64": 64, "bfloat16": 16, "uint8": 8, "bool": 8, "uint4": 4}
"""Bits of a number, by dtype."""
ON_HOST = " (host)"
"""At the end of a name: the part of the optimizer that is in the host's memory."""
ENDS = ("embedding", "head")
"""First names of the components whose matrices are not hidden layers."""
POSITIONS = ("encoder.position", "decoder.position")
"""Components of embeddings that an encoder and a decoder have, which are none either."""


class Sizes(NamedTuple):
    """What an optimizer reads of a parameter tensor.

    `dims`: its sizes; None where only their product is known. `component`: its name, or the last
    part of it. `of_head` computes d_model² / n_head, if the model has heads.
    """

    numbers: Any
    dims: Any = None
    component: str = ""
    of_head: Any = None


def numbers_of_head(a) -> Callable[[], Any] | None:
    """Return what computes d_model² / n_head of an architecture with heads, else None.

    Few optimizers read it, and a division of symbols leaves fewer models in one regime.
    """
    if not (hasattr(a, "n_head") and hasattr(a, "d_model")):
        return None
    return lambda: a.d_model * a.d_model // largest(1, a.n_head)


def sizes_of(component: str, dims: Sequence, of_head: Callable | None = None) -> Sizes:
    """Return what an optimizer reads of a parameter of a component."""
    return Sizes(reduce(mul, dims, 1), tuple(dims), component, of_head)


def _shorter(t: Sizes):
    rows, columns = t.dims[-2:]
    return rows + columns - largest(rows, columns)


def _longer(t: Sizes):
    return largest(*t.dims[-2:])


def _rank(t: Sizes, r):
    """Return the rank, which a matrix bounds."""
    shorter = _shorter(t)
    return r.optimizer_rank + shorter - largest(r.optimizer_rank, shorter)


def _of_last_two(t: Sizes, value: Callable):
    *stacked, rows, columns = t.dims
    return reduce(mul, stacked, 1) * value(rows, columns)


def _squares(t: Sizes, largest_size: int | None):
    """Sum the squares of the sizes up to the largest that is read."""
    total = 0
    for size in t.dims:
        is_read = 1 if largest_size is None else positive(largest_size + 1 - size)
        total = total + is_read * (size * size)
    return total


NUMBERS: dict[str, Callable[[Sizes, Any, "State"], Any]] = {
    "one": lambda t, r, state: 1,
    "all": lambda t, r, state: t.numbers,
    "blocks": lambda t, r, state: ceil_div(t.numbers, state.block),
    "matrices": lambda t, r, state: _of_last_two(t, lambda rows, columns: 1),
    "heads": lambda t, r, state: t.numbers // largest(1, t.of_head()),
    "rows": lambda t, r, state: _of_last_two(t, lambda rows, columns: rows),
    "columns": lambda t, r, state: _of_last_two(t, lambda rows, columns: columns),
    "squares": lambda t, r, state: _squares(t, state.largest),
    "rank × longer": lambda t, r, state: r.optimizer_rank * _longer(t),
    "rank × shorter": lambda t, r, state: r.optimizer_rank * _shorter(t),
    "bounded rank × longer": lambda t, r, state: _rank(t, r) * _longer(t),
    "bounded rank × shorter": lambda t, r, state: _rank(t, r) * _shorter(t),
    "shorter × shorter": lambda t, r, state: _shorter(t) * _shorter(t),
}
"""How many numbers a state has; all but the first three read the sizes of the dimensions."""
OF_NUMBERS = ("one", "all")
"""Those that follow from the number of parameters and of tensors alone."""


class State(Strict):
    """One tensor, or several alike, that is kept for a parameter from step to step.

    `dtype`: exact is float32, or float64 of parameters in that.
    """

    name: str
    numbers: Literal[tuple(NUMBERS)] = "all"  # pyrefly: ignore[invalid-literal]
    dtype: Literal["parameter", "exact", *BITS] = "parameter"  # pyrefly: ignore[invalid-literal]
    count: int = 1
    block: Annotated[int, Field(ge=1)] = 1
    largest: int | None = None
    copies_gradient: bool = False
    of_dtypes: list[str] | None = None

    def n_bytes(self, t: Sizes, r):
        """Count its bytes for a parameter tensor."""
        numbers = NUMBERS[self.numbers](t, r, self)
        if self.dtype == "exact":
            each = exact_bytes(r.dtype) * numbers
        elif self.dtype != "parameter":
            bits = BITS[self.dtype]
            each = ceil_div(bits * numbers, 8) if bits % 8 else bits // 8 * numbers
        else:
            plain = bytes_of(r.dtype)
            each = (plain + r.master_weights * (SINGLE - plain)) * numbers
        return self.count * each * self._is_there(r)

    def _is_there(self, r):
        """1 where parameters of the dtype that is updated have it, else 0."""
        if self.of_dtypes is None:
            return 1
        plain, exact = (int(dtype in self.of_dtypes) for dtype in (r.dtype, "float32"))
        return plain + r.master_weights * (exact - plain)


class Condition(Strict):
    """Which parameter tensors a part of an optimizer is of."""

    dimensions: list[int] | None = None
    least_dimensions: int = 0
    least: int = 0
    multiple_of: int = 1
    hidden: bool = False
    names: list[str] | None = None

    def holds(self, t: Sizes):
        """1 where it holds for a tensor, else 0."""
        n_dims = None if t.dims is None else len(t.dims)
        if self.dimensions is not None and n_dims not in self.dimensions:
            return 0
        names = t.component.split(".")
        is_end = names[0] in ENDS or t.component in POSITIONS
        if (self.hidden and is_end) or (n_dims or 0) < self.least_dimensions:
            return 0
        if self.names is not None and not {*names} & {*self.names}:
            return 0
        holds = positive(t.numbers - self.least + 1) if self.least else 1
        if self.multiple_of > 1:
            padding = ceil_div(t.numbers, self.multiple_of) * self.multiple_of - t.numbers
            holds = holds * (1 - positive(padding))
        return holds


class OptimizerPart(Strict):
    """The states of some parameter tensors, and the tensors of their step.

    `step`: by kernel (single, foreach, fused), the statements of `memory/step_program.py`.
    """

    of: Condition = Condition()
    states: list[State] = Field(default_factory=list)
    as_in: str | None = None
    once: int = 0
    step: dict[str, str] = Field(default_factory=dict)


class OptimizerData(Strict):
    """A file of `configs/optimizers/`."""

    title: str
    library: str
    source: str
    witness: str
    call: str | None
    arguments: dict[str, bool | int | float] = Field(default_factory=dict)
    states_from: Literal["first step", "start"] = "first step"
    updates_in: Literal["step", "backward"] = "step"
    not_of_parts: str = ""
    first_steps: int = 0
    refuses_bfloat16_below: int = 0
    parts: list[OptimizerPart]
    host: list[OptimizerPart] | None = None

    @property
    def follows_numbers(self) -> bool:
        """Whether all states follow from the number of parameters and of tensors alone."""
        (first, *more) = self.parts
        every = first.of == Condition() and not more and first.as_in is None and not first.once
        return every and all(state.numbers in OF_NUMBERS for state in first.states)

    @property
    def is_of_matrices(self) -> bool:
        """Whether it has parts that are of tensors of some dimensions or names alone."""
        return any(p.of.dimensions or p.of.least_dimensions or p.of.names for p in self.parts)

    def choices(self, t: Sizes) -> Iterator[tuple["OptimizerData", OptimizerPart, Any]]:
        """Yield the parts that a tensor may have, with 1 where it has it, else 0.

        With the optimizer that the part is of.
        """
        left = 1
        for part in self.parts:
            holds = left * part.of.holds(t)
            if is_nothing(holds):
                continue
            left = left - holds
            if part.as_in is None:
                yield self, part, holds
            else:
                for optimizer, choice, has_part in optimizer_named(part.as_in).choices(t):
                    yield optimizer, choice, holds * has_part

    @property
    def copies_gradients(self) -> bool:
        """Whether a state begins as a copy of the gradient."""
        return any(state.copies_gradient for part in self.parts for state in part.states)

    def state_bytes(self, t: Sizes, r):
        """Count the bytes of all states of a parameter tensor."""
        return sum(
            holds * sum(state.n_bytes(t, r) for state in part.states)
            for _, part, holds in self.choices(t)
        )

    def once(self, t: Sizes):
        """Count the bytes of tables that a tensor needs, and all of them share."""
        return sum(holds * part.once for _, part, holds in self.choices(t))

    def has_kernel(self, kernel: str) -> bool:
        """Whether the temporary tensors of its step are known; parts without foreach have single.

        A fused kernel is one of all parts that have a step.
        """
        steps = [
            optimizer_named(part.as_in).has_kernel(kernel) if part.as_in else _kernel(part, kernel)
            for part in self.parts
        ]
        return all(steps)


def _kernel(part: OptimizerPart, kernel: str) -> bool:
    return bool(part.step) and (kernel in part.step or "foreach" not in part.step)


@cache
def files() -> dict[str, Path]:
    """Return the file of each optimizer, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*/*.yaml"))}


NAMES = tuple(sorted(files()))


@cache
def optimizer_named(name: str) -> OptimizerData:
    """Read an optimizer; with ON_HOST at its end, what it keeps there. Raises InputError."""
    if name.endswith(ON_HOST):
        whole = optimizer_named(name.removesuffix(ON_HOST))
        return whole.model_copy(update={"parts": whole.host})
    parts = OptimizerPart, State, Condition
    return read_strict(files()[name], OptimizerData, *parts, rest="docs/optimizers.md")


def kernels(r) -> dict[str, Any]:
    """Return the kernels that a run's step may have, with 1 where it is the one, else 0."""
    is_run = {"single": (1 - r.foreach) * (1 - r.fused), "foreach": r.foreach, "fused": r.fused}
    return {name: is_it for name, is_it in is_run.items() if not is_nothing(is_it)}


def kernel_of(r) -> str:
    """Return the kernel of the step of one run."""
    (kernel,) = kernels(r)
    return kernel
