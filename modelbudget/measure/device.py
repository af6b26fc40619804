"""On which device a model is instantiated: where it fits, else without storage."""

from dataclasses import dataclass

import torch

from modelbudget.measure.limits import limits
from modelbudget.measure.table import NO_ROOM
from modelbudget.sweep.sweep_file import Measure

GB = 10**9


@dataclass(frozen=True)
class Room:
    """Bytes that one model may take on each device, what it is that limits those of the CPU, and
    how many models of this size the CPU's memory holds at once.
    """

    cpu: int
    cuda: int
    limit: str = "this machine's memory"
    at_once: int = 1


def room(measure: Measure) -> Room:
    """Under `auto` the size that the sweep states, within a share of all memory, so that what
    happens to be free decides nothing; for a device asked for by name a share of what is free.
    """
    auto, share = measure.device == "auto", measure.memory_share
    free_cuda, all_cuda = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    tightest = min(limits(), key=lambda limit: limit.total if auto else limit.free)
    if not auto:
        return Room(int(tightest.free * share), int(free_cuda * share), tightest.name)
    stated, there = int(measure.memory_gb * GB), int(tightest.total * share)
    cpu = min(stated, there)
    return Room(
        cpu, min(stated, int(all_cuda * share)), tightest.name, max(1, there // max(1, cpu))
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
