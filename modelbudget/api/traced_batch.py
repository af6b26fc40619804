"""The largest batch of a class that only a trace answers, from traces of several batches."""

import math
from collections.abc import Callable, Mapping

from modelbudget.predict.largest_that_fits import Solution

MOST_TRACES = 16
"""Traces after which the search is given up: memory is affine in the batch but for a few kinks, so
that three or four are enough.
"""

Peaks = Mapping[str, int]
"""Bytes at the peak of each phase."""


def largest_batch(
    peaks: dict[int, Peaks],
    trace: Callable[[int], Peaks | None],
    room: int,
    most_ahead: float = math.inf,
) -> Solution | None:
    """Find the largest batch all of whose phases need at most `room` bytes; None if traces fail.

    `peaks`: those of at least one batch; those that are traced are added. The batch that is
    returned and the next one are both among them, or between three traces on one line. At most
    `most_ahead` times the largest batch that fits is traced.
    """
    n_between = 0
    for _ in range(MOST_TRACES):
        fits = {batch: max(phases.values()) <= room for batch, phases in peaks.items()}
        low = max((batch for batch in peaks if fits[batch]), default=0)
        high = min((batch for batch in peaks if not fits[batch]), default=None)
        if high is not None:
            if high <= low + 1:
                return Solution(low, high)
            if _are_on_line(peaks, low, high) and (most := _most_on_line(peaks, low, high, room)):
                return Solution(most, most + 1)
        is_slow = n_between % 3 == 2  # as past a kink
        batch = _next_batch(peaks, low, high, room, most_ahead, is_slow)
        n_between += high is not None
        of_batch = trace(batch)
        if of_batch is None:
            return None
        peaks[batch] = of_batch
    return None


def _are_on_line(peaks: Mapping[int, Peaks], low: int, high: int) -> bool:
    """Return whether each phase is on one line at `low`, `high` and a batch next to them.

    Then it is on that line between them too: kinks (a largest of several moments) and steps would
    make the line between `low` and `high` steeper than before them, or less steep than after.
    """
    before = [batch for batch in peaks if batch < low]
    after = [batch for batch in peaks if batch > high]
    triples = [(max(before), low, high)] if low and before else []
    triples += [(low, high, min(after))] if low and after else []
    return any(
        all(
            (peaks[second][phase] - n_bytes) * (third - second)
            == (peaks[third][phase] - peaks[second][phase]) * (second - first)
            for phase, n_bytes in peaks[first].items()
        )
        for first, second, third in triples
    )


def _most_on_line(peaks: Mapping[int, Peaks], first: int, second: int, room: int) -> int | None:
    """Return the largest batch in the room where each phase is on its line through two batches.

    None if no phase rises.
    """
    rises = {phase: peaks[second][phase] - n_bytes for phase, n_bytes in peaks[first].items()}
    most = (
        first + (room - peaks[first][phase]) * (second - first) // rise
        for phase, rise in rises.items()
        if rise > 0
    )
    return min(most, default=None)


def _next_batch(
    peaks: Mapping[int, Peaks],
    low: int,
    high: int | None,
    room: int,
    most_ahead: float,
    is_slow: bool,
) -> int:
    """Return the batch after `low` and before `high` to trace next.

    On the lines through the two known batches that are nearest to the limit, or twice the largest;
    in the middle where lines are slow.
    """
    if high is not None and is_slow:
        return (low + high) // 2
    below = sorted(batch for batch in peaks if batch <= low)
    above = sorted(batch for batch in peaks if batch > low)
    first, *more = below[-1:] + above[:1] if below and above else below[-2:] or above[:2]
    guess = _most_on_line(peaks, first, more[0], room) if more else None
    if guess is None:
        guess = 2 * low if high is None else high // 2
    most = most_ahead * low if high is None else high - 1
    return max(low + 1, int(min(guess, most)))
