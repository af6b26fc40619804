"""Measuring many architectures in a pool of processes."""

import logging
import multiprocessing
import os
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from tqdm import tqdm

from modelbudget.architecture import Architecture
from modelbudget.measure.count import Count, count
from modelbudget.measure.infer import infer
from modelbudget.measure.place import Room, choose, room
from modelbudget.measure.train import Values, train
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.run import Run
from modelbudget.sweep import OF_INFERENCE, OF_PARAMETERS, OF_TRAINING, Measure

log = logging.getLogger(__name__)


class Measured(NamedTuple):
    """One architecture and run, by digest: on which device, and by quantity and component what
    was found; `shared_with` names the owner of what a component only uses.
    """

    architecture: str
    run: str
    method: str
    values: dict[str, dict[str, int]]
    shared_with: dict[str, str]


def measure_all(
    models: list[tuple[Architecture, Run]], measure: Measure, n_workers: int
) -> list[Measured]:
    """Instantiate and count each model, in the order given; use and train it where a quantity asks
    for that.

    Raises MemoryError when a device asked for by name has no room for a model.
    """
    traced = trains(measure) or is_used(measure)  # seconds a model, where counting takes none
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, len(models) // (1 if traced else 8)))
    # Under `auto` all workers together stay within the share; a device asked for by name was
    # chosen by someone who knows what fits.
    sharing = n_workers if measure.device == "auto" else 1
    free = _room_in_own_process(measure.memory_share, sharing)
    log.info("%d models, %d processes, room %s", len(models), n_workers, free)
    work = partial(_measure, measure=measure, room=free)
    # Fork after torch is imported: a worker is ready at once instead of importing it again.
    with multiprocessing.get_context("fork").Pool(n_workers, _start_worker) as pool:
        results = pool.imap(work, models, chunksize=1 if traced else 4)
        # disable=None: a bar on a terminal, nothing in a file.
        return list(tqdm(results, total=len(models), unit="model", disable=None))


def trains(measure: Measure) -> bool:
    """Whether a quantity asks for a step of training."""
    return bool(OF_TRAINING & set(measure.quantities))


def is_used(measure: Measure) -> bool:
    """Whether a quantity asks for a prompt and a token after it."""
    return bool(OF_INFERENCE & set(measure.quantities))


def _measure(model: tuple[Architecture, Run], measure: Measure, room: Room) -> Measured:
    return measure_one(*model, measure, room)


def measure_one(architecture: Architecture, run: Run, measure: Measure, room: Room) -> Measured:
    """Instantiate one architecture and count it; use and train it where a quantity asks for that.

    All that is first done on `meta`, which costs milliseconds, to learn how many bytes it needs.
    """
    device = measure.device
    if not architecture.has_formula:
        device = "meta"  # other people's classes would draw all of their initial values
    counts, values = _look(architecture, run, measure, "meta")
    peaks = values.get("peak_training_bytes", {}) | values.get("peak_inference_bytes", {})
    needed = max(sum(c.parameter_bytes for c in counts.values()), *peaks.values(), 0)
    if peaks and run.kernels == "gpu":
        room = replace(room, cpu=0)
    method = choose(device, needed, room)
    if method != "meta":
        counts, values = _look(architecture, run, measure, method)
    values |= {
        quantity: {name: getattr(c, quantity) for name, c in counts.items()}
        for quantity in OF_PARAMETERS
    }
    shared = {name: c.shared_with for name, c in counts.items() if c.shared_with}
    return Measured(architecture.digest(), run.digest(), method, values, shared)


def _look(
    architecture: Architecture, run: Run, measure: Measure, device: str
) -> tuple[dict[str, Count], Values]:
    """What one model on one device owns, and what using and training it takes."""
    with uninitialised():
        model = build(architecture, device, run.dtype)
    counts = count(model)
    if device != "meta" and (trains(measure) or is_used(measure)):
        initialise(model)
    asked = set(measure.quantities)
    used = infer(model, run, asked) if is_used(measure) else {}
    trained = train(model, run, asked) if trains(measure) else {}
    return counts, used | trained


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
