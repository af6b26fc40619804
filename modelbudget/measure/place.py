"""On which device a model is instantiated: where it fits, else without storage."""

from dataclasses import dataclass

import torch

from modelbudget.measure.limits import limits
from modelbudget.measure.table import NO_ROOM


@dataclass(frozen=True)
class Room:
    """Bytes that one model may take on each device, and what it is that limits those of the CPU."""

    cpu: int
    cuda: int
    limit: str = "this machine's memory"


def room(memory_share: float, n_workers: int) -> Room:
    """A share of the memory free now, divided among the processes that measure at once."""
    free_cuda = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    tightest = min(limits(), key=lambda limit: limit.for_each(n_workers))
    return Room(
        cpu=int(tightest.for_each(n_workers) * memory_share),
        cuda=int(free_cuda * memory_share / n_workers),
        limit=tightest.name,
    )


def choose(device: str, n_bytes: int, room: Room) -> str:
    """`auto` becomes cuda, cpu or meta; a device asked for by name is kept.

    Raises MemoryError when a model of `n_bytes` does not fit the device that was asked for.
    """
    fits = {"cuda": room.cuda, "cpu": room.cpu, "meta": n_bytes}
    if device == "auto":
        return next(name for name, free in fits.items() if n_bytes <= free)
    if n_bytes > fits[device]:
        of = {"cuda": "the device's memory", "cpu": room.limit}[device]
        raise MemoryError(
            f"{NO_ROOM}{n_bytes:,} bytes on {device}, where {fits[device]:,} may be used of {of}; "
            "free more, or raise measure.memory_share"
        )
    return device
