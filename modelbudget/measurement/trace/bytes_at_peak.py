"""What is live at the peak of training steps, by what it is for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Change = tuple[int, int | None]
"""The key of a storage, unique among those that are live, with its bytes, or None: it is freed."""
Mark = tuple[int, int, str]
"""The number of changes before it, the key of a live storage, and a kind."""

PARAMETERS = "parameters"
STATES = "optimizer_states"
GRADIENTS = "gradients"
GATHERED = "gathered_parameters"
RECEIVED = "received_states"
ACTIVATIONS = "activations"
BUFFERS = "communication_buffers"
TEMPORARY = "temporary"

PURPOSES = (PARAMETERS, STATES, GRADIENTS, GATHERED, RECEIVED, ACTIVATIONS, BUFFERS, TEMPORARY)
"""What a storage is for; of several marks, the first of these counts. After a dot may follow the
component that saved it.
"""


def first(first_purpose: str, second_purpose: str) -> str:
    """Return the purpose of a storage with both marks."""
    return min(first_purpose, second_purpose, key=_place)


def _place(purpose: str) -> int:
    return PURPOSES.index(purpose.partition(".")[0])


@dataclass
class Allocation:
    """A storage that was live after the changes `start` to `end` - 1; None: after the last one."""

    n_bytes: int
    start: int
    end: int | None = None
    purpose: str = TEMPORARY


def at_peak(changes: Sequence[Change], marks: Sequence[Mark]) -> dict[str, int]:
    """Return the bytes of each purpose at the last moment at which most bytes are live.

    `changes`: all that a trace has seen; `marks`: of its storages; both in order. A storage without
    a mark is `temporary`.
    """
    storages = allocations(changes, marks)
    live = [0] * (len(changes) + 1)
    for allocation in storages:
        live[allocation.start] += allocation.n_bytes
        if allocation.end is not None:
            live[allocation.end] -= allocation.n_bytes
    peak = moment = total = 0
    for number, change in enumerate(live):
        total += change
        if total >= peak:
            peak, moment = total, number
    n_bytes: Counter[str] = Counter()
    for allocation in storages:
        if allocation.start <= moment and (allocation.end is None or moment < allocation.end):
            n_bytes[allocation.purpose] += allocation.n_bytes
    return {purpose: n_bytes[purpose] for purpose in sorted(n_bytes, key=_place)}


def allocations(changes: Sequence[Change], marks: Sequence[Mark]) -> list[Allocation]:
    """Return all storages in the order of time, with their purposes."""
    storages: list[Allocation] = []
    open_: dict[int, Allocation] = {}
    seen = 0
    for at, key, purpose in (*marks, (len(changes), 0, TEMPORARY)):
        for number, (changed, n_bytes) in enumerate(changes[seen:at], seen):
            if n_bytes is None:
                open_.pop(changed).end = number
            else:
                open_[changed] = Allocation(n_bytes, number)
                storages.append(open_[changed])
        seen = at
        if allocation := open_.get(key):
            allocation.purpose = first(allocation.purpose, purpose)
    return storages
