"""Predictions of one model by a run of its program, where no closed formula holds."""

from collections.abc import Callable
from functools import lru_cache

from modelbudget.architecture.base import OF_PEAK, Architecture
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import Inference, inference
from modelbudget.quantities.training_step import TrainingStep, declared, training_step

OF_TRAINING: dict[str, Callable[[TrainingStep], dict]] = {
    "parameter_bytes": lambda step: step.parameter_bytes,
    "gradient_bytes": lambda step: step.gradient_bytes,
    "optimizer_bytes": lambda step: step.optimizer_bytes,
    "activation_bytes": lambda step: step.saved,
    "flops_forward": lambda step: step.flops_forward,
    "flops_backward": lambda step: step.flops_backward,
    "peak_training_bytes": lambda step: step.peaks,
}
OF_TENSORS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
"""What the shapes of the tensors give, without a run."""
OF_INFERENCE: dict[str, Callable[[Inference], dict]] = {
    "cache_bytes": lambda result: result.caches,
    "flops_decode": lambda result: result.flops_decode,
    "peak_inference_bytes": lambda result: result.peaks,
}


def terms_by_program(quantity: str, a: Architecture, run: RunConfig) -> Terms | None:
    """Return the terms of a quantity of one model; None if a part or setting has no program."""
    try:
        return _terms(quantity, a, run)
    except NoProgramError:
        return None


def without_program(quantity: str, a: Architecture, run: RunConfig) -> str | None:
    """Return which part or setting has no program, if that is why a quantity has no terms."""
    try:
        _terms(quantity, a, run)
    except NoProgramError as error:
        return str(error)
    return None


def _terms(quantity: str, a: Architecture, run: RunConfig) -> Terms | None:
    if quantity == "resident_peak_bytes":
        peaks = _training_step(a, run).peaks  # pyright: ignore[reportArgumentType]
        return {"model": Term(max(peaks.values()))}
    quantity = "peak_training_bytes" if quantity in OF_PEAK else quantity
    if quantity in OF_TRAINING:
        values = OF_TRAINING[quantity](_step_of(quantity, a, run))
    elif quantity in OF_INFERENCE:
        values = OF_INFERENCE[quantity](_inference(a, run))  # pyright: ignore[reportArgumentType]
    else:
        return None
    return {name: Term(value) for name, value in values.items()}


def _step_of(quantity: str, a: Architecture, run: RunConfig) -> TrainingStep:
    """Return a step of the program; of a part that is only counted, what its tensors give."""
    try:
        return _training_step(a, run)  # pyright: ignore[reportArgumentType]
    except NoProgramError:
        if not is_partial(run) or quantity not in OF_TENSORS:
            raise
    return of_any_depth(lambda a: declared(type(a).program(), a, run), a)


@lru_cache(maxsize=256)
def _training_step(a: Architecture, run: RunConfig) -> TrainingStep:
    program = type(a).program()
    if run.trained_from_layer:
        return training_step(program, a, run)  # layers are not the same
    return of_any_depth(lambda a: training_step(program, a, run, lists_allocations=True), a)


@lru_cache(maxsize=256)
def _inference(a: Architecture, run: RunConfig) -> Inference:
    program = type(a).program()
    return of_any_depth(lambda a: inference(program, a, run, lists_allocations=True), a)
