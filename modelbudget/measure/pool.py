"""Measuring many architectures in several processes."""

import logging
import os
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from modelbudget.architecture import Architecture
from modelbudget.measure import allocator
from modelbudget.measure.build import build
from modelbudget.measure.count import Count, count
from modelbudget.measure.infer import infer
from modelbudget.measure.place import Room, choose, room
from modelbudget.measure.resident import copies, resident
from modelbudget.measure.train import Values, train
from modelbudget.measure.workers import Bound, Failure, spread
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.progress import progress
from modelbudget.run import Run
from modelbudget.sweep import (
    LAID_OUT,
    OF_ALLOCATOR,
    OF_INFERENCE,
    OF_PARAMETERS,
    OF_PROCESS,
    OF_TRAINING,
    Measure,
)

log = logging.getLogger(__name__)
ROOM_TIMEOUT_S = 120
"""A device that does not say in this time how much memory it has is broken."""


OBJECTS_BYTES = 2**31
"""What one model may take beside its tensors: Python's objects of a class that needs many."""


class Measured(NamedTuple):
    """One architecture and run, by digest: on which device, and by quantity and component what
    was found; `shared_with` names the owner of what a component only uses; `missing` says why a
    quantity was not measured: there was no room, or, without a device, all of it failed.
    `laid_out` is no measurement but what the allocator's rules make of the trace.
    """

    architecture: str
    run: str
    method: str | None
    values: Values
    shared_with: dict[str, str]
    missing: dict[str, str]
    laid_out: Values


def measure_all(
    models: list[tuple[Architecture, Run]], measure: Measure, n_workers: int
) -> list[Measured]:
    """Instantiate and count each model, in the order given; use and train it where a quantity asks
    for that. One that fails, dies or takes longer than `measure.timeout_s` comes back without
    values and with the reason, and the others are measured.
    """
    asked = set(measure.quantities)
    traced = trains(asked) or is_used(asked)  # seconds a model, where counting takes none
    most = 1 if asked & OF_PROCESS else len(models) // (1 if traced else 8)
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, most))
    # Under `auto` all workers together stay within the share; a device asked for by name was
    # chosen by someone who knows what fits.
    sharing = n_workers if measure.device == "auto" else 1
    free = _room_in_own_process(measure.memory_share, sharing)
    log.info("%d models, %d processes, room %s", len(models), n_workers, free)
    work = partial(_measure, measure=measure, room=free)
    bound = Bound(
        free.cpu + OBJECTS_BYTES,
        f"one model: measure.memory_share of {free.limit} and {OBJECTS_BYTES:,} bytes for objects",
    )
    outcomes = spread(work, models, n_workers, measure.timeout_s, bound)
    found = dict(progress(outcomes, len(models)))
    return [_measured(model, found[i], measure) for i, model in enumerate(models)]


def trains(quantities: set[str]) -> bool:
    """Whether a quantity asks for a step of training."""
    return bool((OF_TRAINING | OF_ALLOCATOR) & quantities)


def is_used(quantities: set[str]) -> bool:
    """Whether a quantity asks for a prompt and a token after it."""
    return bool(OF_INFERENCE & quantities)


def _measure(model: tuple[Architecture, Run], measure: Measure, room: Room) -> Measured:
    torch.set_num_threads(1)
    return measure_one(*model, measure, room)


def _measured(
    model: tuple[Architecture, Run], outcome: Measured | Failure, measure: Measure
) -> Measured:
    if isinstance(outcome, Measured):
        return outcome
    architecture, run = model
    missing = dict.fromkeys(measure.quantities, outcome.reason)
    return Measured(architecture.digest(), run.digest(), None, {}, {}, missing, {})


def measure_one(architecture: Architecture, run: Run, measure: Measure, room: Room) -> Measured:
    """Instantiate one architecture and count it; use and train it where a quantity asks for that.

    All that is first done on `meta`, which costs milliseconds, to learn how many bytes it needs.

    Raises MemoryError, before anything is allocated, when a device asked for by name has no room.
    """
    device = measure.device
    if not architecture.has_formula:
        device = "meta"  # other people's classes would draw all of their initial values
    asked = set(measure.quantities)
    counts, values = _look(architecture, run, asked, "meta")
    laid_out = {quantity: values.pop(quantity) for quantity in LAID_OUT & values.keys()}
    n_bytes = sum(c.parameter_bytes for c in counts.values())
    peaks = values.get("peak_training_bytes", {}) | values.get("peak_inference_bytes", {})
    if peaks and run.kernels == "gpu":
        room = replace(room, cpu=0)
    if asked & OF_PROCESS:
        room = replace(room, cuda=0)
    method = choose(device, max(n_bytes, *peaks.values(), 0), room)
    if method != "meta":
        ask = {"cpu": allocator.of_cpu, "cuda": allocator.of_cuda}[method]
        # First: the workspace of products is what the first of a process takes.
        handed_out = ask(architecture, run) if asked & OF_ALLOCATOR else {}
        counts, values = _look(architecture, run, asked - LAID_OUT, method)
        values |= handed_out
    told, missing = _of_process(architecture, run, measure, n_bytes, room)
    values |= told
    values |= {
        quantity: {name: getattr(c, quantity) for name, c in counts.items()}
        for quantity in OF_PARAMETERS
    }
    shared = {name: c.shared_with for name, c in counts.items() if c.shared_with}
    digests = architecture.digest(), run.digest()
    return Measured(*digests, method, values, shared, missing, laid_out)


def _of_process(
    architecture: Architecture, run: Run, measure: Measure, n_bytes: int, room: Room
) -> tuple[Values, dict[str, str]]:
    """What the system tells of a model of `n_bytes` on a CPU; by quantity, what there is no room
    for under `auto`, and why.
    """
    asked = OF_PROCESS & set(measure.quantities)
    wanted = []
    if asked - {"resident_peak_bytes"}:
        wanted.append((asked - {"resident_peak_bytes"}, n_bytes))
    if "resident_peak_bytes" in asked:
        _, traced = _look(architecture, run, {"peak_training_bytes"}, "meta")
        wanted.append(({"resident_peak_bytes"}, max(traced["peak_training_bytes"].values())))
    values, missing = {}, {}
    for quantities, needed in wanted:
        try:
            choose("cpu", needed, room)
        except MemoryError as error:
            if measure.device != "auto":
                raise
            missing |= dict.fromkeys(quantities, str(error))
            continue
        n_copies = min(copies(n_bytes), room.cpu // n_bytes)
        trained = "resident_peak_bytes" in quantities
        values |= resident(architecture, run, n_copies, trained)
    return values, missing


def _look(
    architecture: Architecture, run: Run, asked: set[str], device: str
) -> tuple[dict[str, Count], Values]:
    """What one model on one device owns, and what using and training it takes."""
    with uninitialised():
        model = build(architecture, device, run.dtype)
    counts = count(model)
    if device != "meta" and (trains(asked) or is_used(asked)):
        initialise(model)
    used = infer(model, run, asked) if is_used(asked) else {}
    trained = train(model, run, asked) if trains(asked) else {}
    return counts, used | trained


def _room_in_own_process(memory_share: float, n_workers: int) -> Room:
    """Asked in a child: a process that has touched CUDA cannot fork workers that use it."""
    ((_, free),) = spread(lambda share: room(share, n_workers), [memory_share], 1, ROOM_TIMEOUT_S)
    if isinstance(free, Failure):
        raise OSError(f"the memory of this machine cannot be read: {free.reason}")
    return free
