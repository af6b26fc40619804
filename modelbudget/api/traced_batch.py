"""The largest batch of a class that only a trace answers, from traces of several batches."""

from __future__ import annotations

from collections.abc import Callable

from modelbudget.predict.largest_that_fits import Solution

MOST_TRACES = 16
"""Traces after which the search is given up: memory is affine in the batch but for a few kinks, so
that four or five are enough.
"""
MOST_AHEAD = 4
"""Where the optimizer's step is the peak, a line through small batches leads much too far."""


def largest_batch(
    n_bytes: dict[int, int], trace: Callable[[int], int | None], room: int
) -> Solution | None:
    """Find the largest batch that needs at most `room` bytes; None if traces do not say.

    `n_bytes`: bytes by batch, of at least one batch; those that are traced are added. The batch
    that is returned and the next one are both among them.
    """
    for _ in range(MOST_TRACES):
        low = max((batch for batch, needed in n_bytes.items() if needed <= room), default=0)
        high = min((batch for batch, needed in n_bytes.items() if needed > room), default=None)
        if high is not None and high <= low + 1:
            return Solution(low, high)
        batch = _next_batch(n_bytes, low, high, room)
        needed = trace(batch)
        if needed is None:
            return None
        n_bytes[batch] = needed
    return None


def _next_batch(n_bytes: dict[int, int], low: int, high: int | None, room: int) -> int:
    """Return the batch after `low` and before `high` to trace next.

    On the line through the two known batches that are nearest to the limit, at most `MOST_AHEAD`
    times the largest, or twice the largest; every third time in the middle, since a line leads
    slowly past a kink.
    """
    if high is not None and len(n_bytes) % 3 == 0:
        return (low + high) // 2
    below = sorted(batch for batch in n_bytes if batch <= low)
    above = sorted(batch for batch in n_bytes if batch > low)
    first, *more = (below[-1:] + above[:1]) if below and above else (below or above)[-2:]
    guess = 2 * low
    if more:
        slope = n_bytes[more[0]] - n_bytes[first]
        if slope > 0:
            guess = first + (room - n_bytes[first]) * (more[0] - first) // slope
    elif high is not None:
        guess = high // 2
    return max(low + 1, min(guess, MOST_AHEAD * low if high is None else high - 1))
