"""A deep model from a shallow run of its program.

Layers repeat in periods (`mixers:` and `mlps:`). Totals are affine in the number of periods, and so
are the live bytes at each allocation in the first two and the last two of them; in inference, where
nothing is saved, in the first and the last. Between these, live bytes are affine from one period to
the next, so that a peak lies at one end. One run, in which a period stands for all between the
others, therefore gives any depth (`Repeat` of `operations/tape.py`).

Of numbers, one layer at each end mostly is enough: what a period adds to what is live later must
be the same all the time, or else it is not freed with them (`remainder`). It is not where layers
read the same tensor, whose first gradient may be a view of something larger, while the sums of
several are not. A model of which two at each end are too few runs as deep as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, cycle, groupby, islice
from math import lcm
from operator import index
from typing import Any, NamedTuple, TypeVar

from modelbudget.operations.tape import Active, Allocation, Repeat, repeating


@dataclass(kw_only=True)
class OfPhases:
    """What a run of a program gives of its phases: its peaks, and its allocations if listed."""

    peaks: dict[Any, Any] = field(default_factory=dict)
    allocations: dict[Any, list[Allocation]] = field(default_factory=dict)
    remainder: int = field(default=0, compare=False)
    """Bytes that are live at the end and should not be, of a run with numbers."""


Result = TypeVar("Result", bound=OfPhases)


class Shallow(NamedTuple):
    """A run that stands for a deeper model: one of its periods stands for several."""

    n_layer: int
    """Layers of the run without that period."""
    first: int
    """The number of the layer with which that period begins."""
    period: int
    n_left_out: int
    """For how many periods it stands."""


UNLIKE = "n_kv_shared_layer", "d_per_layer"
"""Fields of models whose layers are two halves, or have a table as wide as all of them."""


def shallow(a, n_end: int = 2, of_layers: bool = False) -> Shallow | None:
    """Return the run that stands for a model: none if it is not deeper than that.

    `n_end`: the periods at each end that may differ from those between them, if a family does not
    need more; `of_layers`: the layers.
    """
    fields = (name for name in ("mixers", "mlps") if name in type(a).model_fields)
    patterns = [getattr(a, name).split() for name in fields]
    if "n_layer" not in type(a).model_fields or any(getattr(a, name, 0) for name in UNLIKE):
        return None
    if getattr(a, "n_distinct", a.n_layer) != a.n_layer:
        return None
    other_periods = (index(getattr(a, name, 1)) for name in ("global_every", "n_shared_block"))
    period, n_dense = lcm(*map(len, patterns)), index(getattr(a, "n_dense_layer", 0))
    period *= lcm(*other_periods)
    n_end = max(n_end, getattr(type(a), "UNLIKE_PERIODS", 1)) * (1 if of_layers else period)
    first = n_dense + n_end
    n_left_out = (a.n_layer - first - n_end) // period
    if n_left_out < 2:
        return None
    return Shallow(index(a.n_layer - n_left_out * period), first, period, n_left_out)


def of_any_depth(
    run: Callable[[Any], Result], a, n_end: int = 2, keeps_pattern: bool = False
) -> Result:
    """Return the quantities of an architecture; `run` gives them, of fewer layers.

    With numbers, whose live bytes can be compared, one layer at each end is tried first.
    `keeps_pattern`: only the number of layers may change.
    """
    for few, repeats in _with_few_layers(a, n_end, keeps_pattern):
        with repeating(repeats):
            result = run(few)
        if not result.remainder:
            result.allocations = {}
            return result
    return run(a)


def _with_few_layers(
    a, n_end: int, keeps_pattern: bool
) -> Iterator[tuple[Any, tuple[Repeat, ...]]]:
    """Yield models of fewer layers, and which of them stand for more."""
    fields = type(a).model_fields
    is_unlike = any(getattr(a, name, 0) for name in (*UNLIKE, "n_mtp_layer"))
    if Active.zero is int and "n_encoder_layer" in fields:
        yield from _of_two_stacks(a, n_end)
    few, n_shared = [], getattr(a, "n_shared_block", 0)
    has_pattern = "mixers" in fields and not (keeps_pattern or is_unlike)
    if Active.zero is int and has_pattern and n_shared < 2:
        n_dense_layer, mlps = getattr(a, "n_dense_layer", 0), getattr(a, "mlps", "mlp")
        if of_pattern := _fewer(a.n_layer, n_dense_layer, a.mixers, mlps, n_end * n_shared):
            changed, repeats = of_pattern
            changed = {name: changed[name] for name in changed.keys() & fields.keys()}
            yield a.model_copy(update=changed), repeats
    elif Active.zero is int:
        few.append(shallow(a, 1, of_layers=True))
    names = {"n_layer", "n_distinct"} & fields.keys()
    for of_few in (*few, shallow(a, n_end)):
        if of_few is None:
            continue
        first, period = of_few.first, of_few.period
        repeat = Repeat(range(first, first + period), of_few.n_left_out)
        yield a.model_copy(update=dict.fromkeys(names, of_few.n_layer + period)), (repeat,)


def _of_two_stacks(a, n_end: int) -> Iterator[tuple[Any, tuple[Repeat, ...]]]:
    """Yield an encoder and a decoder of fewer layers, and which of them stand for more."""
    period, n_before, changed, repeats = len(a.mlps.split()), 0, {}, []
    for name in "n_encoder_layer", "n_decoder_layer":
        n_layer, first = getattr(a, name), n_end * period
        if (times := (n_layer - 2 * first) // period) > 1:
            repeats.append(Repeat(range(n_before + first, n_before + first + period), times))
            n_layer -= (times - 1) * period
        changed[name], n_before = n_layer, n_before + n_layer
    if repeats:
        yield a.model_copy(update=changed), tuple(repeats)


@lru_cache(maxsize=256)
def _fewer(
    n_layer: int, n_dense_layer: int, mixers: str, mlps: str, n_end: int
) -> tuple[dict[str, Any], tuple[Repeat, ...]] | None:
    """Return the fields of a model of fewer layers, and which of them stand for more.

    One of equal periods in a row stands for all, wherever they begin; next to them are layers like
    theirs. Of more than three equal layers in a row, the second stands for those between the ends.
    """
    of_mlps = chain(["mlp"] * n_dense_layer, cycle(mlps.split()))
    layers = list(islice(zip(cycle(mixers.split()), of_mlps, strict=False), n_layer))
    if not (periods := _most_periods(layers, n_end)):
        return None
    start, end, period = periods
    n = (end - start) // period
    kept, repeats = min(
        (_kept(layers, first, period, n) for first in range(start, end - n * period + 1)),
        key=lambda few: len(few[0]),
    )
    if kept == layers[: len(kept)]:
        return {"n_layer": len(kept)}, repeats
    names = zip(("mixers", "mlps"), map(" ".join, zip(*kept, strict=True)), strict=True)
    return {"n_layer": len(kept), "n_dense_layer": 0, **dict(names)}, repeats


def _most_periods(layers: Sequence, n_end: int) -> tuple[int, int, int] | None:
    """Return where equal periods may begin and end, and how long one is, so that most are equal.

    At each end are `n_end` more, of layers that share parameters, or one layer. None if there are
    no two.
    """
    most, best = 0, None
    for period in range(1, len(layers) // 2 + 1):
        start = 0
        for end in range(period, len(layers) + 1):
            if end == len(layers) or layers[end] != layers[end - period]:
                few = n_end * period or 1
                n_left_out = (end - start - 2 * few) // period * period - period
                if n_left_out > most:
                    most, best = n_left_out, (start + few, end - few, period)
                start = end - period + 1
    return best


def _kept(layers: Sequence, first: int, period: int, n: int) -> tuple[list, tuple[Repeat, ...]]:
    """Return the layers of a run: those of one of n periods, and those before and behind them."""
    kept, repeats, starts = [], [], []
    for part in layers[:first], layers[first : first + period], layers[first + n * period :]:
        starts.append(len(kept))
        for layer, in_a_row in groupby(part):
            n_equal = len(list(in_a_row))
            if n_equal > 3:
                repeats.append(Repeat(range(len(kept) + 1, len(kept) + 2), n_equal - 2))
            kept += [layer] * min(n_equal, 3)
    return kept, (Repeat(range(starts[1], starts[2]), n), *repeats)
