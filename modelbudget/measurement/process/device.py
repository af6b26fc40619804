"""Choice of the device of a model: one that it fits, else meta."""

from dataclasses import dataclass

import torch

from modelbudget.common.byte_sizes import GB
from modelbudget.measurement.measured import NO_ROOM
from modelbudget.measurement.process.free_memory import limits
from modelbudget.sweeps.sweep_file import Measure


@dataclass(frozen=True)
class Room:
    """Bytes that one model may take on each device.

    `limit` names what limits the CPU's memory, `free` has its free bytes, and `at_once` is the
    number of models of this size that fit it.
    """

    cpu: int
    cuda: int
    limit: str = "this machine's memory"
    at_once: int = 1
    free: int = 0


def room(measure: Measure) -> Room:
    """Return the room for one model.

    With `auto`, the size stated by the sweep, within a share of all memory: free memory must not
    affect results. With a device given by name, a share of its free memory.
    """
    auto, share = measure.device == "auto", measure.memory_share
    free_cuda, all_cuda = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    tightest = min(limits(), key=lambda limit: limit.total if auto else limit.free)
    if not auto:
        cpu, cuda = int(tightest.free * share), int(free_cuda * share)
        return Room(cpu, cuda, tightest.name, free=tightest.free)
    stated, available = int(measure.memory_gb * GB), int(tightest.total * share)
    cpu = min(stated, available)
    cuda, at_once = min(stated, int(all_cuda * share)), max(1, available // max(1, cpu))
    return Room(cpu, cuda, tightest.name, at_once, tightest.free)


def choose(device: str, n_bytes: int, room: Room) -> str:
    """Resolve `auto` to cuda, cpu or meta; keep a device given by name.

    Raises MemoryError if a model of `n_bytes` does not fit a device given by name.
    """
    fits = {"cuda": room.cuda, "cpu": room.cpu, "meta": n_bytes}
    if device == "auto":
        return next(name for name, free in fits.items() if n_bytes <= free)
    if n_bytes > fits[device]:
        of = {"cuda": "the device's memory", "cpu": room.limit}[device]
        raise MemoryError(
            f"{NO_ROOM}{n_bytes:,} bytes on {device}, where {fits[device]:,} may be used of {of}; "
            "free more, raise memory_share, or measure on meta"
        )
    return device


def use_one_core() -> None:
    """Compute in one thread, and round the smallest numbers to zero.

    Other models are measured on the other cores. All tokens of a measured step are the same, which
    leaves gradients below 1e-38, with which a processor computes 50 times slower.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
