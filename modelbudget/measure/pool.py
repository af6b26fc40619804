"""Measuring many architectures in a pool of processes."""

import logging
import multiprocessing
import os
from functools import partial
from typing import NamedTuple

import torch
from tqdm import tqdm

from modelbudget.architecture import Architecture
from modelbudget.measure.count import Count, count
from modelbudget.measure.place import Room, choose, room
from modelbudget.modules.initialise import uninitialised

log = logging.getLogger(__name__)


class Measured(NamedTuple):
    """One architecture as instantiated: on which device, and what each component owns."""

    architecture: str
    method: str
    counts: dict[str, Count]


def measure_all(
    architectures: list[Architecture], device: str, dtype: str, memory_share: float, n_workers: int
) -> list[Measured]:
    """Instantiate and count each architecture, in the order given.

    Raises MemoryError when a device asked for by name has no room for a model.
    """
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(architectures) // 8))
    # Under `auto` all workers together stay within the share; a device asked for by name was
    # chosen by someone who knows what fits.
    free = _room_in_own_process(memory_share, n_workers if device == "auto" else 1)
    log.info("%d architectures, %d processes, room %s", len(architectures), n_workers, free)
    work = partial(measure, device=device, dtype=dtype, room=free)
    # Fork after torch is imported: a worker is ready at once instead of importing it again.
    with multiprocessing.get_context("fork").Pool(n_workers, _start_worker) as pool:
        results = pool.imap(work, architectures, chunksize=4)
        # disable=None: a bar on a terminal, nothing in a file.
        return list(tqdm(results, total=len(architectures), unit="model", disable=None))


def measure(architecture: Architecture, device: str, dtype: str, room: Room) -> Measured:
    """Instantiate one architecture and count it.

    The model is first built on `meta`, which costs milliseconds, to learn how many bytes it needs.
    """
    if not architecture.has_formula:
        device = "meta"  # other people's classes would draw all of their initial values
    with uninitialised():
        model = build(architecture, "meta", dtype)
        counts = count(model)
        method = choose(device, sum(c.parameter_bytes for c in counts.values()), room)
        if method != "meta":
            model = build(architecture, method, dtype)
            counts = count(model)
    return Measured(architecture.digest(), method, counts)


def build(architecture: Architecture, device: str, dtype: str):
    """The torch model of an architecture, on a device, in a dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return architecture.build()
    finally:
        torch.set_default_dtype(default)


def _start_worker() -> None:
    torch.set_num_threads(1)


def _room_in_own_process(memory_share: float, n_workers: int) -> Room:
    """Asked in a child: a process that has touched CUDA cannot fork workers that use it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(room, (memory_share, n_workers))
