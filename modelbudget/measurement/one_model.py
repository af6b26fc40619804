"""Measurement of one model: on meta first, then on a device if it fits."""

import logging
import math
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from torch import nn

from modelbudget.architecture.adapter_methods import why_not_run
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division
from modelbudget.common.workers import in_one_line
from modelbudget.measurement.build import build, build_class
from modelbudget.measurement.count import Count, by_quantity, count
from modelbudget.measurement.measured import Measured, Values, nothing
from modelbudget.measurement.process import allocator
from modelbudget.measurement.process.device import Room, choose
from modelbudget.measurement.process.resident_memory import copies, resident
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.torch_optimizer import why_not_measured
from modelbudget.measurement.step.train import OF_OPTIMIZER, train
from modelbudget.measurement.step.transformers_step import KEEPS_NONE
from modelbudget.measurement.trace.inference import infer, reads_all_at_once
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.memory import caching_allocator
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.sweeps.not_with_quantised_weights import refused
from modelbudget.sweeps.quantity_names import (
    OF_ALLOCATOR,
    OF_INFERENCE,
    OF_PARAMETERS,
    OF_PROCESS,
    OF_RUN,
    OF_SIMULATION,
    OF_TRAINING,
)
from modelbudget.sweeps.sweep_file import Measure

if TYPE_CHECKING:
    from modelbudget.families.hugging_face import HuggingFace

log = logging.getLogger(__name__)
OF_PEAK = {"resident_peak_bytes"}
"""Quantities of a process that need a training step."""
OF_STEP = OF_OPTIMIZER | OF_ALLOCATOR | OF_PEAK
"""Quantities that need a step of the optimizer."""


def trains(quantities: Set[str]) -> bool:
    """Whether a quantity needs a training step."""
    return bool((OF_TRAINING | OF_ALLOCATOR) & quantities)


def infers(quantities: Set[str]) -> bool:
    """Whether a quantity needs inference."""
    return bool(OF_INFERENCE & quantities)


def measure_one(
    architecture: Architecture, run: RunConfig, measure: Measure, room: Room
) -> Measured:
    """Build one architecture and count it; run inference and training if a quantity needs them.

    All of this is first done on meta, in milliseconds, to find how many bytes it needs. Quantities
    that fail are `missing`: those of inference or training if that fails; all of them if the model
    cannot be built, or if it does not fit a device given by name, where nothing is allocated then.

    Raises MemoryError if this process reaches its memory limit.
    """
    if division(run):
        return _of_rank(architecture, run, set(measure.quantities))
    missing = refused(architecture, run, set(measure.quantities))
    if why := why_not_run(run):
        missing = dict.fromkeys(set(measure.quantities) & (OF_RUN | OF_PROCESS), why) | missing
    if why := why_not_measured(run):
        missing = dict.fromkeys(set(measure.quantities) & OF_STEP, why) | missing
    wanted = set(measure.quantities) - missing.keys()
    with _losing(wanted, missing):
        counts, values, simulated = look(_built(architecture, run, "meta"), run, wanted, missing)
    if wanted <= missing.keys():
        return nothing(architecture, run, missing)
    n_bytes = sum(c.parameter_bytes for c in counts.values())
    peaks = values.get("peak_training_bytes", {}) | values.get("peak_inference_bytes", {})
    if peaks:  # are those of a backend
        room = replace(room, cpu=0) if run.backend == "gpu" else replace(room, cuda=0)
    if wanted & OF_PROCESS:
        room = replace(room, cuda=0)
    # `transformers` classes would initialise all of their weights.
    device = measure.device if architecture.has_formula else "meta"
    try:
        method = choose(device, max(n_bytes, *peaks.values(), 0), room)
    except MemoryError as error:
        return nothing(architecture, run, missing | dict.fromkeys(wanted, in_one_line(error)))
    if method != "meta":
        counts, values = {}, {}
        with _losing(wanted - OF_PROCESS - simulated.keys(), missing):
            counts, values = _on_device(architecture, run, wanted, method, missing)
    values |= _of_process(architecture, run, measure, n_bytes, room, missing)
    values |= by_quantity(counts, OF_PARAMETERS - missing.keys())
    if why:  # its peaks are those of one pass
        values = {
            quantity: by_component
            for quantity, by_component in values.items()
            if quantity not in missing
        }
    shared = {name: c.shared_with for name, c in counts.items() if c.shared_with}
    digests = architecture.digest(), run.digest()
    return Measured(*digests, method, values, shared, missing, simulated)


def _of_rank(architecture: Architecture, run: RunConfig, wanted: Set[str]) -> Measured:
    """Measure what one device of a fake process group holds of a model."""
    # Imports DTensor, which takes a second.
    from modelbudget.measurement.parallel.fake_process_group import METHOD
    from modelbudget.measurement.parallel.rank import of_rank

    missing: dict[str, str] = {}
    counts, values = {}, {}
    with _losing(wanted, missing):
        counts, values = of_rank(architecture, run, wanted)
    if missing:
        return nothing(architecture, run, missing)
    shared = {name: c.shared_with for name, c in counts.items() if c.shared_with}
    return Measured(architecture.digest(), run.digest(), METHOD, values, shared, {}, {})


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


def look(
    model: nn.Module,
    run: RunConfig,
    wanted: Set[str],
    missing: dict[str, str],
    limit: float = math.inf,
) -> tuple[dict[str, Count], Values, Values]:
    """Count a model, and trace its inference and training; add to `missing` what fails.

    What runs more than `limit` operations in one phase fails.

    Returns counts by component, traced values, and those of a CUDA allocator that is simulated with
    the allocations of the trace.
    """
    counts, values, simulated = count(model), {}, {}
    device = next(model.parameters()).device.type
    arrange(model, run)
    if is_partial(run) or (run.weights, run.vocabulary_dtype) != ("dtype", "dtype"):
        counts = _with_bytes_of(counts, count(model))
    if device != "meta" and (trains(wanted) or infers(wanted)):
        initialise(model)
    of_inference, of_training = wanted & OF_INFERENCE, wanted & (OF_TRAINING | OF_ALLOCATOR)
    if reads_all_at_once(model):  # with the products of training, also where there is no loss
        of_inference |= of_training & {"flops_forward"}
        of_training -= of_inference
    if of_inference:
        with _losing(of_inference, missing):
            of_run = infer(model, run, of_inference, Trace(model, limit))
            if reads_all_at_once(model):
                keeps_none = f"{type(model).__name__} {KEEPS_NONE}"
                missing |= dict.fromkeys(of_inference - of_run.keys(), keeps_none)
            values |= of_run
    if of_training:
        with _losing(of_training, missing):
            trace = Trace(model, limit)
            values |= train(model, run, of_training, trace)
            simulated = _simulated(trace, wanted & OF_SIMULATION)
    return counts, values, simulated


def _simulated(trace: Trace, quantities: Set[str]) -> Values:
    if not quantities:
        return {}
    peaks = caching_allocator.by_quantity(caching_allocator.peaks(trace.changes, trace.ends))
    return {quantity: peaks[quantity] for quantity in quantities}


def _with_bytes_of(counts: dict[str, Count], stored: dict[str, Count]) -> dict[str, Count]:
    """Return the parameters of an architecture, and the bytes of a model that stores them."""
    return {
        name: replace(
            stored.get(name, Count()),
            parameters=counts.get(name, Count()).parameters,
            shared_with=counts.get(name, Count()).shared_with,
        )
        for name in counts | stored
    }


def _built(architecture: Architecture, run: RunConfig, device: str) -> nn.Module:
    if architecture.name() == "hugging-face":
        # Imports transformers, which takes seconds.
        from modelbudget.huggingface.unknown_class import configuration

        class_name = cast("HuggingFace", architecture).kind
        return build_class(class_name, configuration(architecture), run, device)
    with uninitialised():
        return build(architecture, device, run.dtype)


def _on_device(
    architecture: Architecture,
    run: RunConfig,
    wanted: Set[str],
    device: str,
    missing: dict[str, str],
) -> tuple[dict[str, Count], Values]:
    """Measure on a device the quantities that did not fail on meta."""
    # First, since the workspace of cuBLAS is allocated by the first matrix product of a process.
    of_device = {}
    if of_allocator := (wanted & OF_ALLOCATOR) - missing.keys():
        read = {"cpu": allocator.of_cpu, "cuda": allocator.of_cuda}[device]
        with _losing(of_allocator, missing):
            of_device = read(architecture, run)
    traced = wanted - OF_ALLOCATOR - missing.keys()
    counts, values, _ = look(_built(architecture, run, device), run, traced, missing)
    return counts, values | of_device


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
    wanted, values = OF_PROCESS & set(measure.quantities) - missing.keys(), {}
    for quantities in filter(None, (wanted - OF_PEAK, wanted & OF_PEAK)):
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
