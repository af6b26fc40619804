"""A deep model from two shallow runs of its program.

Layers repeat in periods (`mixers:` and `mlps:`). Totals are affine in the number of periods, and so
are the live bytes at each allocation in the first two and the last two of them; in inference, where
nothing is saved, in the first and the last. Between these, live bytes are affine from one period to
the next, so that a peak lies at one end. Two runs, one period apart, therefore give any depth.
Their allocations must be the same but for those of the period that one of them has more; a model
for which they are not runs as deep as it is.

Of numbers, one period at each end mostly is enough: what a period adds to what is live later must
be the same all the time. It is not where layers read the same tensor, whose first gradient may be a
view of something larger, while the sums of several are not.
"""

from collections import Counter
from collections.abc import Callable
from math import lcm
from operator import index
from typing import Any, NamedTuple, TypeVar

from modelbudget.architecture.arithmetic import highest
from modelbudget.operations.tape import Active, Allocation
from modelbudget.quantities.length import OfPhases

Result = TypeVar("Result", bound=OfPhases)


class Shallow(NamedTuple):
    """Two runs that stand for a deeper model; the second has one period of layers more."""

    n_layer: int
    """Layers of the first."""
    first: int
    """The number of the layer with which the period begins that the second has more."""
    period: int
    n_left_out: int
    """Periods that the model has more than the first."""

    @property
    def more_layers(self) -> range:
        """Return the layers that the second has more."""
        return range(self.first, self.first + self.period)

    def periods_after(self, layer: int | None) -> int | None:
        """Return by how many periods a layer is after those."""
        return None if layer is None else (layer - self.first) // self.period

    def extended(self, value, value_of_second):
        """Return what is affine in the depth."""
        return (1 - self.n_left_out) * value + self.n_left_out * value_of_second


def shallow(a, n_end: int = 2) -> Shallow | None:
    """Return the runs that stand for a model: none if it is not deeper than they are.

    `n_end`: the periods at each end that may differ from those between them, if a family does not
    need more.
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
    n_end = max(n_end, getattr(type(a), "UNLIKE_PERIODS", 1))
    first = n_dense + -n_dense % period + n_end * period
    n_left_out = (a.n_layer - first - n_end * period) // period
    if n_left_out < 2:
        return None
    return Shallow(index(a.n_layer - n_left_out * period), first, period, n_left_out)


def of_any_depth(run: Callable[[Any], Result], a, n_end: int = 2) -> Result:
    """Return the quantities of an architecture; `run` gives them with lists of allocations.

    With numbers, whose live bytes can be compared, one period at each end is tried first.
    """
    for n in range(1 if Active.zero is int else n_end, n_end + 1):
        runs = shallow(a, n)
        result = runs and _of_shallow(run, a, runs, _live_of_few if n < n_end else _live)
        if result is not None:
            return result
    return run(a)


def _of_shallow(run: Callable[[Any], Result], a, runs: Shallow, live: Callable) -> Result | None:
    """Return the quantities from two runs; None if they differ in more than one period."""
    short, long = (run(_of_depth(a, n)) for n in (runs.n_layer, runs.n_layer + runs.period))
    peaks = {}
    for phase, allocations in short.allocations.items():
        if not _differ_in_one_period(runs, allocations, long.allocations[phase]):
            return None
        of_phase = live(runs, allocations, long.allocations[phase])
        if of_phase is None:
            return None
        peaks[phase] = highest(*of_phase)
    for phase, (repeated, more) in short.repeats.items():
        peaks[phase] = peaks[repeated] + runs.extended(more, long.repeats[phase][1])
    result = type(short)()
    result.peaks = {phase: peaks[phase] for phase in short.peaks}
    for name, value in vars(short).items():
        if isinstance(value, Counter):
            setattr(result, name, _counter(runs, value, getattr(long, name)))
    return result


def _of_depth(a, n_layer: int):
    names = {"n_layer", "n_distinct"} & type(a).model_fields.keys()
    return a.model_copy(update=dict.fromkeys(names, n_layer))


def _counter(runs: Shallow, short: Counter, long: Counter) -> Counter:
    return Counter({name: runs.extended(short[name], n) for name, n in long.items()})


def _differ_in_one_period(runs: Shallow, short: list[Allocation], long: list[Allocation]) -> bool:
    in_both = [x for x in long if x.layer not in runs.more_layers]
    if len(in_both) != len(short):
        return False
    for x, y in zip(short, in_both, strict=True):
        layer = y.layer if y.layer is None or y.layer < runs.first else y.layer - runs.period
        if x[:1] + x[2:5] != y[:1] + y[2:5] or x.layer != layer:
            return False
    return True


def _live(runs: Shallow, short: list[Allocation], long: list[Allocation]) -> list:
    """Return the live bytes at the allocations of both runs."""
    in_both = (x.live for x in long if x.layer not in runs.more_layers)
    return [runs.extended(x.live, live) for x, live in zip(short, in_both, strict=True)]


def _live_of_few(runs: Shallow, short: list[Allocation], long: list[Allocation]) -> list | None:
    """Return the live bytes at the allocations of both runs, and of the first and last period more.

    Where those run, the others of them add what one adds right before it, or right after it. None
    where that is not the same from one time that it runs to the next: what a period leaves is then
    not what others leave. A step of the optimizer frees it in between.
    """
    live, of_period, before = [], [], None
    more, unread = long[0].live - short[0].live, iter(short)
    for y in long:
        if y.layer in runs.more_layers:
            of_period.append(y.live)
            continue
        added = y.live - next(unread).live
        if added != more and not of_period and y.phase != "optimizer":
            return None
        if of_period:
            if {runs.periods_after(before), runs.periods_after(y.layer)} != {-1, 1}:
                return None
            live += [n + (runs.n_left_out - 1) * m for n in of_period for m in (more, added)]
        live.append(y.live + (runs.n_left_out - 1) * added)
        more, before, of_period = added, y.layer, []
    return None if of_period else live
