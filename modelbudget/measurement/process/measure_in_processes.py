"""Measurement of many models in several processes."""

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.progress import progress
from modelbudget.common.workers import Bound, Failure, spread
from modelbudget.measurement.measured import Measured, nothing
from modelbudget.measurement.one_model import infers, measure_one, trains
from modelbudget.measurement.process.device import Room, room, use_one_core
from modelbudget.measurement.trace.module_trace import import_compiler
from modelbudget.sweeps.quantity_names import (
    OF_ALLOCATOR,
    OF_INFERENCE,
    OF_PARAMETERS,
    OF_PROCESS,
    OF_TRAINING,
)
from modelbudget.sweeps.sweep_file import Measure

log = logging.getLogger(__name__)
ROOM_TIMEOUT_S = 120
"""Seconds after which a device that does not report its memory counts as broken."""
OBJECTS_BYTES = 2**31
"""Bytes that one model may take in addition to its tensors, for Python objects."""
GROUPS = (OF_PARAMETERS, OF_INFERENCE, OF_TRAINING, OF_ALLOCATOR, OF_PROCESS)
"""Quantities that are lost together if measuring them ends the process."""

Outcomes = Iterator[tuple[int, Measured | Failure]]


class _Task(NamedTuple):
    """Task of a worker: quantities of one model."""

    architecture: Architecture
    run: RunConfig
    measure: Measure


def measure_all(
    models: list[tuple[Architecture, RunConfig]], measure: Measure, n_workers: int
) -> list[Measured]:
    """Measure each model, as `measure_each` does. Results are in the order of `models`."""
    results = dict(measure_each(models, measure, n_workers))
    return [results[i] for i in range(len(models))]


def measure_each(
    models: list[tuple[Architecture, RunConfig]], measure: Measure, n_workers: int
) -> Iterator[tuple[int, Measured]]:
    """Measure each model (`measure_one`), and yield its number with the result as it completes.

    Quantities that fail are in the result with the reason, even if the process crashes or takes
    longer than `measure.timeout_s`; all others are measured.
    """
    wanted = set(measure.quantities)
    traced = trains(wanted) or infers(wanted)  # takes seconds a model; counting takes milliseconds
    most = 1 if wanted & OF_PROCESS else len(models) // (1 if traced else 8)
    machine = _room(measure)
    if traced:
        import_compiler()  # once, before workers are forked
        most = min(most, machine.free // OBJECTS_BYTES)
    if traced and any(run.backend == "cpu" for _, run in models):
        most = min(most, machine.at_once)  # this memory is written to, not only reserved
    n_workers = max(1, min(n_workers, os.cpu_count() or 1, most))
    log.info("%d models, %d processes, room %s", len(models), n_workers, machine)
    run_tasks = partial(_run_tasks, n_workers=n_workers, room=machine)
    tasks = [_Task(*model, measure) for model in models]
    several_groups = sum(bool(group & wanted) for group in GROUPS) > 1
    ended = {}
    for i, outcome in progress(run_tasks(tasks), len(models)):
        if several_groups and isinstance(outcome, Failure):
            ended[i] = tasks[i]
        else:
            yield i, _measured(tasks[i], outcome)
    yield from _group_by_group(ended, run_tasks).items()


def _run_tasks(tasks: list[_Task], n_workers: int, room: Room) -> Outcomes:
    if not tasks:
        return iter(())
    measure = tasks[0].measure
    share = f"memory_share of {room.limit}"
    bound = Bound(room.cpu + OBJECTS_BYTES, f"one model ({share}, and {OBJECTS_BYTES:,} bytes)")
    if room.cuda and measure.device in ("auto", "cuda"):
        bound = None  # the driver of a GPU maps much more memory than it uses
    work = partial(_measure, room=room)
    return spread(work, tasks, n_workers, measure.timeout_s, bound)


def _group_by_group(
    ended: dict[int, _Task], run_tasks: Callable[[list[_Task]], Outcomes]
) -> dict[int, Measured]:
    """Repeat models that ended their process, one group of quantities at a time.

    Only the groups that end the process again are lost. Parameters come first: if they fail, the
    model is given up. With `auto` everything is done on meta, since a model has one method.
    """
    counting = {i: _of_group(task, OF_PARAMETERS) for i, task in ended.items()}
    counted = _outcomes(counting, run_tasks)
    by_group = {
        (i, group): _of_group(task, group)
        for i, task in ended.items()
        for group in GROUPS[1:]
        if group & set(task.measure.quantities) and isinstance(counted[i], Measured)
    }
    measured = _outcomes(by_group, run_tasks)
    parts = {i: [outcome] for i, outcome in counted.items() if isinstance(outcome, Measured)}
    for (i, group), outcome in measured.items():
        parts[i].append(_measured(by_group[i, group], outcome))
    alone = {i: _measured(task, counted[i]) for i, task in ended.items() if i not in parts}
    return alone | {i: _together(ended[i], of_model) for i, of_model in parts.items()}


def _of_group(task: _Task, group: frozenset[str]) -> _Task:
    """Restrict a task to one group of quantities; parameters are always measured."""
    wanted = group if group == OF_PARAMETERS else group & set(task.measure.quantities)
    device = "meta" if task.measure.device == "auto" else task.measure.device
    settings = {"quantities": sorted(wanted), "device": device}
    return task._replace(measure=task.measure.model_copy(update=settings))


def _outcomes(tasks: dict, run_tasks: Callable[[list[_Task]], Outcomes]) -> dict:
    """Return the outcome of each task under its key."""
    keys = list(tasks)
    return {keys[i]: outcome for i, outcome in run_tasks(list(tasks.values()))}


def _together(task: _Task, parts: list[Measured]) -> Measured:
    """Merge the results of a task's groups; the first one has the method."""
    values, missing, simulated = {}, {}, {}
    for part in parts:
        values |= part.values
        missing |= part.missing
        simulated |= part.simulated
    reasons = {name: reason for name, reason in missing.items() if name in task.measure.quantities}
    return parts[0]._replace(values=values, missing=reasons, simulated=simulated)


def _measure(task: _Task, room: Room) -> Measured:
    use_one_core()
    return measure_one(*task, room)


def _measured(task: _Task, outcome: Measured | Failure) -> Measured:
    """Return the outcome as a result; a Failure as one without measurements."""
    if isinstance(outcome, Measured):
        return outcome
    missing: dict[str, str] = dict.fromkeys(task.measure.quantities, outcome.reason)
    return nothing(task.architecture, task.run, missing)


def _room(measure: Measure) -> Room:
    """Return the room, read in a child: a process that uses CUDA cannot fork workers that do.

    It is read here where torch is built without CUDA, since a process with torch forks slowly.
    """
    if not torch.backends.cuda.is_built():
        return room(measure)
    ((_, outcome),) = spread(room, [measure], 1, ROOM_TIMEOUT_S)
    if isinstance(outcome, Failure):
        raise OSError(f"the memory of this machine cannot be read: {outcome.reason}")
    return outcome
