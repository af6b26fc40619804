"""Peak memory of inference, excluding weights and KV cache, from timelines."""

from typing import Any, NamedTuple

from modelbudget.architecture.operations import largest
from modelbudget.memory.timeline import Timeline, peak_during


class Step(NamedTuple):
    """A part of a forward pass that leaves nothing live: `before` bytes are live when it begins.

    `is_there`: 1 where the model has such a part. Identical parts of several layers are one step.
    """

    timeline: Timeline
    before: Any = 0
    is_there: Any = 1


def peak(steps: list[Step]):
    """Return the largest number of bytes that are live at once."""
    return largest(*(one.is_there * peak_during(one.before, one.timeline) for one in steps))
