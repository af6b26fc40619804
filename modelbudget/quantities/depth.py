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

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count, cycle, groupby, islice
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


def shallow(a, n_end: int = 2, of_layers: bool = False) -> Shallow | None:
    """Return the run that stands for a model: none if it is not deeper than that.

    `n_end`: the periods at each end that may differ from those between them, if a family does not
    need more; `of_layers`: the layers.
    """
    fields = (name for name in ("mixers", "mlps") if name in type(a).model_fields)
    patterns = [getattr(a, name).split() for name in fields]
    unlike = "n_kv_shared_layer", "d_per_layer"  # two halves; a table as wide as all layers
    if "n_layer" not in type(a).model_fields or any(getattr(a, name, 0) for name in unlike):
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
    for of_few in [shallow(a, 1, of_layers=True)] * (Active.zero is int) + [shallow(a, n_end)]:
        if of_few is None:
            continue
        few, repeats = with_few_layers(a, of_few, keeps_pattern)
        with repeating(repeats):
            result = run(few)
        if not result.remainder:
            result.allocations = {}
            return result
    return run(a)


def with_few_layers(a, of_few: Shallow, keeps_pattern: bool) -> tuple[Any, list[Repeat]]:
    """Return the model of a run, and which of its layers stand for more.

    Of numbers, equal layers in a row are three: the first, one for those between, and the last.
    """
    fields = type(a).model_fields
    n_layer, first = of_few.n_layer + of_few.period, of_few.first
    period = range(first, first + of_few.period)
    names = {"n_layer", "n_distinct"} & fields.keys()
    few = a.model_copy(update=dict.fromkeys(names, n_layer))
    has_pattern = {"mixers", "mlps", "n_dense_layer"} <= fields.keys() and not a.n_mtp_layer
    if keeps_pattern or Active.zero is not int or not has_pattern:
        return few, [Repeat(period, of_few.n_left_out)]
    mixers, mlps = (islice(cycle(x.split()), n_layer) for x in (a.mixers, a.mlps))
    of_layers = zip(mixers, chain(["mlp"] * a.n_dense_layer, mlps), count(), strict=False)
    kept, repeats, starts = [], [], {}
    for _, in_a_row in groupby(of_layers, lambda x: (*x[:2], x[2] in period, x[2] < first)):
        equal = list(in_a_row)
        starts[equal[0][2]] = len(kept)
        if len(equal) > 3:
            repeats.append(Repeat(range(len(kept) + 1, len(kept) + 2), len(equal) - 2))
            equal = [equal[0], equal[1], equal[-1]]
        kept += equal
    if len(kept) == n_layer:  # so that all have the same model, which is run once
        return few, [Repeat(period, of_few.n_left_out)]
    outer = Repeat(range(starts[first], starts[period.stop]), of_few.n_left_out)
    mixers, mlps, _ = (" ".join(map(str, names)) for names in zip(*kept, strict=True))
    pattern = {"n_layer": len(kept), "n_dense_layer": 0, "mixers": mixers, "mlps": mlps}
    return a.model_copy(update=pattern), [outer, *repeats]
