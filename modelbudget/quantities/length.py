"""A long text from three short runs of a program that computes it token by token.

A recurrence that is written out runs some operations for each token, or for each chunk of tokens.
All sizes are at most quadratic in the length, and so are the live bytes at each allocation outside
of such loops, and in their first two and last two steps. Between these, live bytes are affine from
one step to the next, so that a peak lies at one end. Three runs whose lengths differ by one period
therefore give any length. Their allocations must be the same but for those of the steps that a
longer one has more; a run for which they are not computes all tokens.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from operator import index
from typing import Any, NamedTuple, TypeVar

from modelbudget.architecture.arithmetic import highest
from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.mixers import mixers
from modelbudget.operations.tape import Allocation


@dataclass(kw_only=True)
class OfPhases:
    """What a run of a program gives of its phases: its peaks, and its allocations if listed."""

    peaks: dict[Any, Any] = field(default_factory=dict)
    allocations: dict[Any, list[Allocation]] = field(default_factory=dict)
    repeats: dict[Any, tuple[Any, Any]] = field(default_factory=dict, compare=False)
    """Phases that allocate what another does, which are not listed: the other, and how many bytes
    more are live."""
    remainder: int = field(default=0, compare=False)
    """Bytes that are live at the end and should not be, of a run with numbers."""


Result = TypeVar("Result", bound=OfPhases)
FEWER = 2
"""How many times fewer tokens three runs must have than one, since each makes and updates all
parameters, and lists its allocations.
"""
PADDED_QUERIES = 32
"""Queries to which the memory-efficient kernel pads its sums."""


class Short(NamedTuple):
    """Three runs that stand for a longer one; each has one period of tokens more."""

    length: int
    """Tokens of the first."""
    first: int
    """The token with which those begin that the second has more."""
    period: int
    n_left_out: int
    """Periods that the run has more than the first."""

    def lengths(self) -> list[int]:
        return [self.length + n * self.period for n in range(3)]

    def extended(self) -> Callable[[Any, Any, Any], Any]:
        """Return what gives a number of the run from those of the three, quadratic in the length.

        Newton's forward differences: x + n (y − x) + n (n − 1) / 2 · (z − 2 y + x).
        """
        n = self.n_left_out
        of_z = n * (n - 1) // 2
        of_y = n - 2 * of_z
        of_x = 1 - of_y - of_z
        return lambda x, y, z: x if x is y is z else of_x * x + of_y * y + of_z * z


def tokens_per_step(a) -> list[int]:
    """Return, for each recurrence of a model, how many tokens a step of its loop reads."""
    names = {*a.mixers.split()} if "mixers" in type(a).model_fields else ()
    files = [mixers().get(name) for name in names]
    files += [type(a), getattr(a, "mixer", None)]  # of a family with one
    return [n for file in files if (n := getattr(file, "TOKENS_PER_STEP", 0))]


def short(a, run: RunConfig) -> Short | None:
    """Return the runs that stand for a run: none if it is not longer, or has no such loop."""
    steps = tokens_per_step(a)
    # Chunks of the loss are no multiple; an update comes where the last token of a loop is done.
    if not steps or run.loss_kernel == "fused_linear" or run.optimizer_in_backward:
        return None
    kernel = PADDED_QUERIES if run.attention_kernel == "efficient" else 1
    period, longest = lcm(*steps, run.loss_chunks, kernel), max(steps)
    # As long as the run: than a window, and than the tokens that an indexer selects.
    sizes = [index(getattr(a, name, 0)) for name in ("window", "n_selected")]
    least = max([4 * longest, *(size + 1 for size in sizes if size < run.length)])
    n_left_out = (run.length - least) // period
    if n_left_out < 4:
        return None
    return Short(run.length - n_left_out * period, 2 * longest, period, n_left_out)


def of_any_length(
    compute: Callable[[RunConfig, bool], Result], a, run: RunConfig, lists_allocations: bool
) -> Result:
    """Return the quantities of a run; `compute` gives them, with lists of allocations or without.

    The list of a long run leaves out the steps between the first and the last of its loops.
    """
    runs = short(a, run)
    # Of a symbol there is no run of all tokens.
    if runs is None or (type(run.length) is int and run.length <= FEWER * sum(runs.lengths())):
        return compute(run, lists_allocations)
    results = [
        compute(run.model_copy(update={"length": length}), True) for length in runs.lengths()
    ]
    allocations: dict[str, list[Allocation]] = {}
    for phase in results[0].allocations:
        extended = _extended(runs, [result.allocations[phase] for result in results])
        if extended is None:
            return compute(run, lists_allocations)
        allocations[phase] = extended
    remainder = max(abs(of_run.remainder) for of_run in results)
    result = replace(results[0], remainder=remainder, repeats={})
    for name, value in vars(results[0]).items():
        if isinstance(value, Counter):
            setattr(result, name, _counter(runs, [getattr(of_run, name) for of_run in results]))
    peaks = {phase: highest(*(x.live for x in listed)) for phase, listed in allocations.items()}
    for phase, (repeated, _) in results[0].repeats.items():
        more = runs.extended()(*(of_run.repeats[phase][1] for of_run in results))
        result.repeats[phase] = repeated, more
        peaks[phase] = peaks[repeated] + more
    result.peaks = {phase: peaks[phase] for phase in results[0].peaks}
    result.allocations = allocations if lists_allocations else {}
    return result


def _counter(runs: Short, counters: Sequence[Counter]) -> Counter:
    extended = runs.extended()
    return Counter(
        {name: extended(*(counter[name] for counter in counters)) for name in counters[2]}
    )


def _extended(runs: Short, lists: list[list[Allocation]]) -> list[Allocation] | None:
    """Return the allocations outside of the steps left out; None if those of the runs differ."""
    aligned = [
        [x for x in listed if x.token is None or not runs.first <= x.token < runs.first + n_more]
        for listed, n_more in zip(lists, range(0, 3 * runs.period, runs.period), strict=True)
    ]
    if len({len(listed) for listed in aligned}) > 1:
        return None
    of_three, extended = runs.extended(), []
    for x, y, z in zip(*aligned, strict=True):
        if x[:4] != y[:4] or x[:4] != z[:4]:
            return None
        n_bytes, live = of_three(x.n_bytes, y.n_bytes, z.n_bytes), of_three(x.live, y.live, z.live)
        phase, layer, component, operation, *_, token = x
        extended.append(Allocation(phase, layer, component, operation, n_bytes, live, token))
    return extended
