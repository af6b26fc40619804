"""Measurement of one model: on meta first, then on a device if it fits."""

import logging
from collections.abc import Iterator, Set
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
"""Quantities of a process that need a training step."""


class Measured(NamedTuple):
    """Measurements of one architecture and run, which are given by their digests.

    `method` is the device, or None if nothing was measured. `values` are by quantity and component.
    `shared_with` names the owner of a shared tensor for each other component. `missing` has the
    reason for each quantity that was not measured: a failure or a lack of memory (see
    `table.is_failure`). `laid_out` is not measured: it is computed by the simulated allocator.
    """

    architecture: str
    run: str
    method: str | None
    values: Values
    shared_with: dict[str, str]
    missing: dict[str, str]
    laid_out: Values


def trains(quantities: Set[str]) -> bool:
    """Whether a quantity needs a training step."""
    return bool((OF_TRAINING | OF_ALLOCATOR) & quantities)


def is_used(quantities: Set[str]) -> bool:
    """Whether a quantity needs inference."""
    return bool(OF_INFERENCE & quantities)


def nothing(architecture: Architecture, run: RunConfig, missing: dict[str, str]) -> Measured:
    """Return the result of a model that could not be measured at all."""
    return Measured(architecture.digest(), run.digest(), None, {}, {}, missing, {})


def measure_one(
    architecture: Architecture, run: RunConfig, measure: Measure, room: Room
) -> Measured:
    """Build one architecture and count it; run inference and training if a quantity needs them.

    All of this is first done on meta, in milliseconds, to find how many bytes it needs. Quantities
    that fail are `missing`: those of inference or training if that fails; all of them if the model
    cannot be built, or if it does not fit a device given by name, where nothing is allocated then.

    Raises MemoryError if this process reaches its memory limit.
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
    # `transformers` classes would initialise all of their weights.
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
def _losing(quantities: Set[str], missing: dict[str, str]) -> Iterator[None]:
    """Record an exception of the block as the reason why these quantities are missing.

    MemoryError is passed on and ends the process, since what is still allocated is unknown.
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
    asked: Set[str],
    device: str,
    missing: dict[str, str],
) -> tuple[dict[str, Count], Values]:
    """Count one model on one device, and trace its inference and training."""
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
    asked: Set[str],
    device: str,
    missing: dict[str, str],
) -> tuple[dict[str, Count], Values]:
    """Measure on a device the quantities that did not fail on meta."""
    # First, since the workspace of cuBLAS is allocated by the first matrix product of a process.
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
    """Measure the process memory of a model of `n_bytes` on a CPU.

    Quantities for which there is too little memory are `missing`, which is a failure if the device
    was given by name.
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
