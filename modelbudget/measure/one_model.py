"""Measuring one model: without storage first, then on a device where it fits."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.workers import in_one_line
from modelbudget.measure import allocator
from modelbudget.measure.build import build
from modelbudget.measure.count import Count, count
from modelbudget.measure.device import Room, choose
from modelbudget.measure.infer import infer
from modelbudget.measure.rss import copies, resident
from modelbudget.measure.train import Values, train
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.sweep.sweep_file import (
    LAID_OUT,
    OF_ALLOCATOR,
    OF_INFERENCE,
    OF_PARAMETERS,
    OF_PROCESS,
    OF_TRAINING,
    Measure,
)

log = logging.getLogger(__name__)
OF_PEAK = {"resident_peak_bytes"}
"""The quantity of a process that needs a step of training."""


class Measured(NamedTuple):
    """One architecture and run, by digest: on which device, and by quantity and component what
    was found; `shared_with` names the owner of what a component only uses; `missing` says why a
    quantity was not measured: it failed, or there was no room (see `table.is_failure`). Without
    any measurement there is no `method`. `laid_out` is no measurement but what the allocator's
    rules make of the trace.
    """

    architecture: str
    run: str
    method: str | None
    values: Values
    shared_with: dict[str, str]
    missing: dict[str, str]
    laid_out: Values


def trains(quantities: set[str]) -> bool:
    """Whether a quantity asks for a step of training."""
    return bool((OF_TRAINING | OF_ALLOCATOR) & quantities)


def is_used(quantities: set[str]) -> bool:
    """Whether a quantity asks for a prompt and a token after it."""
    return bool(OF_INFERENCE & quantities)


def nothing(architecture: Architecture, run: RunConfig, missing: dict[str, str]) -> Measured:
    """The result where nothing could be measured, and why."""
    return Measured(architecture.digest(), run.digest(), None, {}, {}, missing, {})


def measure_one(
    architecture: Architecture, run: RunConfig, measure: Measure, room: Room
) -> Measured:
    """Instantiate one architecture and count it; use and train it where a quantity asks for that.

    All that is first done on `meta`, which costs milliseconds, to learn how many bytes it needs.
    Quantities that fail are `missing`: those of a group where its pass fails; all of them where
    the model cannot be built, or where a device asked for by name has no room, in which case
    nothing is allocated there.

    Raises MemoryError where this process may take no more.
    """
    asked, missing = set(measure.quantities), {}
    with _losing(asked, missing):
        counts, values = _look(architecture, run, asked, "meta", missing)
    if asked <= missing.keys():
        return nothing(architecture, run, missing)
    laid_out = {quantity: values.pop(quantity) for quantity in LAID_OUT & values.keys()}
    n_bytes = sum(c.parameter_bytes for c in counts.values())
    peaks = values.get("peak_training_bytes", {}) | values.get("peak_inference_bytes", {})
    if peaks and run.backend == "gpu":
        room = replace(room, cpu=0)
    if asked & OF_PROCESS:
        room = replace(room, cuda=0)
    # Other people's classes would draw all of their initial values.
    device = measure.device if architecture.has_formula else "meta"
    try:
        method = choose(device, max(n_bytes, *peaks.values(), 0), room)
    except MemoryError as error:
        return nothing(architecture, run, dict.fromkeys(asked, in_one_line(error)))
    if method != "meta":
        counts, values = {}, {}
        with _losing(asked - OF_PROCESS - laid_out.keys(), missing):
            counts, values = _on_device(architecture, run, asked, method, missing)
    values |= _of_process(architecture, run, measure, n_bytes, room, missing)
    values |= {
        quantity: {name: getattr(c, quantity) for name, c in counts.items()}
        for quantity in OF_PARAMETERS
    }
    shared = {name: c.shared_with for name, c in counts.items() if c.shared_with}
    digests = architecture.digest(), run.digest()
    return Measured(*digests, method, values, shared, missing, laid_out)


@contextmanager
def _losing(quantities: set[str], missing: dict[str, str]) -> Iterator[None]:
    """An error inside is why these quantities are missing. Memory that runs out ends the process:
    nobody knows what is still held.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        log.warning("not measured: %s", ", ".join(sorted(quantities)), exc_info=True)
        for quantity in quantities:
            missing.setdefault(quantity, in_one_line(error))


def _look(
    architecture: Architecture,
    run: RunConfig,
    asked: set[str],
    device: str,
    missing: dict[str, str],
) -> tuple[dict[str, Count], Values]:
    """What one model on one device owns, and what using and training it takes."""
    model = _built(architecture, run, device)
    counts, values = count(model), {}
    if device != "meta" and (trains(asked) or is_used(asked)):
        initialise(model)
    if of_use := asked & OF_INFERENCE:
        with _losing(of_use, missing):
            values |= infer(model, run, of_use)
    if of_training := asked & (OF_TRAINING | OF_ALLOCATOR):
        with _losing(of_training, missing):
            values |= train(model, run, of_training)
    return counts, values


def _built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    with uninitialised():
        return build(architecture, device, run.dtype)


def _on_device(
    architecture: Architecture,
    run: RunConfig,
    asked: set[str],
    device: str,
    missing: dict[str, str],
) -> tuple[dict[str, Count], Values]:
    """What a device holds and computes of the quantities that did not fail without storage."""
    # First: the workspace of products is what the first of a process takes.
    handed_out = {}
    if of_allocator := (asked & OF_ALLOCATOR) - missing.keys():
        ask = {"cpu": allocator.of_cpu, "cuda": allocator.of_cuda}[device]
        with _losing(of_allocator, missing):
            handed_out = ask(architecture, run)
    traced = asked - OF_ALLOCATOR - missing.keys()
    counts, values = _look(architecture, run, traced, device, missing)
    return counts, values | handed_out


def _of_process(
    architecture: Architecture,
    run: RunConfig,
    measure: Measure,
    n_bytes: int,
    room: Room,
    missing: dict[str, str],
) -> Values:
    """What the system reports of a model of `n_bytes` on a CPU. What there is no room for is
    `missing`: a failure where the device was asked for by name.
    """
    asked, values = OF_PROCESS & set(measure.quantities), {}
    for quantities in filter(None, (asked - OF_PEAK, asked & OF_PEAK)):
        with _losing(quantities, missing):
            needed = n_bytes
            if trained := quantities == OF_PEAK:
                traced = train(_built(architecture, run, "meta"), run, {"peak_training_bytes"})
                needed = max(traced["peak_training_bytes"].values())
            try:
                choose("cpu", needed, room)
            except MemoryError as error:
                reason = in_one_line(error) if measure.device == "cpu" else str(error)
                missing |= dict.fromkeys(quantities, reason)
                continue
            n_copies = min(copies(n_bytes), room.cpu // n_bytes)
            values |= resident(architecture, run, n_copies, trained)
    return values
