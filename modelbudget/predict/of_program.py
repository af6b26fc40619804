"""Predictions of one model by a run of its program, where no closed formula holds."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

from modelbudget.architecture.base import OF_PEAK, Architecture
from modelbudget.architecture.operations import highest
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import Inference, inference
from modelbudget.quantities.training_step import TrainingStep, declared, training_step

Use = Literal["training", "inference"]
Quantities = Mapping[str, Mapping[str, Any]]
"""By quantity and component; of peaks by phase."""

OF_TRAINING: dict[str, Callable[[TrainingStep], Mapping]] = {
    "parameter_bytes": lambda step: step.parameter_bytes,
    "gradient_bytes": lambda step: step.gradient_bytes,
    "optimizer_bytes": lambda step: step.optimizer_bytes,
    "activation_bytes": lambda step: step.saved,
    "flops_forward": lambda step: step.flops_forward,
    "flops_backward": lambda step: step.flops_backward,
    "peak_training_bytes": lambda step: step.peaks,
    **dict.fromkeys(OF_PEAK, lambda step: step.peaks),
    "resident_peak_bytes": lambda step: {"model": highest(*step.peaks.values())},
}
OF_TENSORS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
"""What the shapes of the tensors give, without a run."""
OF_INFERENCE: dict[str, Callable[[Inference], Mapping]] = {
    "cache_bytes": lambda result: result.caches,
    "flops_decode": lambda result: result.flops_decode,
    "peak_inference_bytes": lambda result: result.peaks,
}
USES: dict[str, Use] = {
    **dict.fromkeys(OF_TRAINING, "training"),
    **dict.fromkeys(OF_INFERENCE, "inference"),
}
"""The use of a model whose run gives a quantity."""


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
    if quantity not in USES:
        return None
    use = USES[quantity]
    values = _of_one_model(use, a, run)  # pyright: ignore[reportArgumentType]
    if quantity not in values:
        _training_step(a, run)  # raises the reason
    return {name: Term(value) for name, value in values[quantity].items()}


@lru_cache(maxsize=256)
def _of_one_model(use: Use, a: Architecture, run: RunConfig) -> Quantities:
    return quantities(use, a, run)


def quantities(use: Use, a: Architecture, run: RunConfig) -> Quantities:
    """Run the program of a model; its sizes may be symbols. Raises NoProgramError.

    Of a part that is only counted, the quantities are those that its tensors give.
    """
    program = type(a).program()
    if use == "inference":
        if not type(a).has_cache:
            raise NoProgramError(f"inference of {a.name()}")
        result = of_any_depth(lambda a: inference(program, a, run, lists_allocations=True), a, 1)
        return {name: read(result) for name, read in OF_INFERENCE.items()}
    try:
        step = _training_step(a, run)
    except NoProgramError:
        if not is_partial(run):
            raise
        step = of_any_depth(lambda a: declared(program, a, run), a)
        return {name: OF_TRAINING[name](step) for name in OF_TENSORS}
    return {name: read(step) for name, read in OF_TRAINING.items()}


def _training_step(a: Architecture, run: RunConfig) -> TrainingStep:
    program = type(a).program()
    if run.trained_from_layer:  # layers are not the same
        return training_step(program, a, run, lists_allocations=True)
    return of_any_depth(lambda a: training_step(program, a, run, lists_allocations=True), a)
