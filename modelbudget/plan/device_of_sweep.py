"""Whether the device that a sweep names is there and has memory for the sweep's models."""

from collections.abc import Collection

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.measurement.process.free_memory import limits
from modelbudget.predict.formula import formula
from modelbudget.sweeps.expand import Expanded
from modelbudget.sweeps.quantity_names import OF_ALLOCATOR, OF_RUN, OF_TRAINING


def out_of_reach(sweep: Expanded) -> list[str]:
    """Return mistakes about the device: it must exist and have memory for the largest model.

    Free memory is checked later, when each model is measured.
    """
    device = sweep.sweep.measure.device
    key = f"{sweep.path}: measure.device = {device!r}"
    if device == "cuda" and not _has_cuda():
        return [f"{key}: torch finds no CUDA device here; allowed: auto, meta, cpu"]
    backends = {point.run.backend for point in sweep.points}
    if OF_RUN & set(sweep.sweep.measure.quantities):
        if device == "cpu" and "gpu" in backends:
            return [f"{key}: backend: gpu; allowed: backend: cpu, or device: auto, meta, cuda"]
        if device == "cuda" and "cpu" in backends:
            return [f"{key}: backend: cpu; allowed: backend: gpu, or device: auto, meta, cpu"]
    if device == "cpu":
        share = sweep.sweep.measure.memory_share
        tightest = min(limits(), key=lambda limit: limit.total)
        available = int(tightest.total * share)
        quantities = sweep.sweep.measure.quantities
        largest = max(_predicted_peak(p.architecture, p.run, quantities) for p in sweep.points)
        if largest > available:
            return [
                f"{key}: the largest model needs {largest:,} bytes, and {share:.0%} of "
                f"{tightest.name} is {available:,}; allowed: auto, meta, or fewer points"
            ]
    return []


def _predicted_peak(architecture: Architecture, run: RunConfig, quantities: Collection[str]) -> int:
    """Predict the peak memory of measuring one model, in bytes.

    The bytes of its parameters if nothing runs, or neither formula nor program covers it.
    """
    if (OF_TRAINING | OF_ALLOCATOR) & set(quantities):
        phases, _ = formula(type(architecture), "peak_training_bytes", architecture, run)
        if phases:
            return max(term.total for term in phases.values())
    return total(architecture.parameter_bytes(architecture, run))


def _has_cuda() -> bool:
    import torch  # importing it takes a second, and only sweeps on a GPU need it

    return torch.cuda.is_available()
