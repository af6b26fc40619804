"""Predictions of one model by programs: a run of its program where no closed formula holds."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

from modelbudget.architecture.arithmetic import highest
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_STORED, is_pipelined
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.architecture.terms import Term, Terms
from modelbudget.components.preference_loss import Preference
from modelbudget.operations.part import NoProgramError, NotComputedError
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import Inference, declared_caches, inference
from modelbudget.quantities.tape_of_run import weight_bytes
from modelbudget.quantities.training_step import (
    MODEL,
    PHASE,
    TrainingStep,
    declared,
    pass_alone,
    training_step,
)

Use = Literal["training", "inference", "caches"]
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
    "peak_requested_bytes": lambda step: step.peaks,
    "resident_peak_bytes": lambda step: {"model": highest(*step.peaks.values())},
}
OF_PEAKS = {"peak_training_bytes", "peak_requested_bytes", "resident_peak_bytes"}
OF_TENSORS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
"""What the shapes of the tensors give, without a run."""
OF_INFERENCE: dict[str, Callable[[Inference], Mapping]] = {
    "flops_decode": lambda result: result.flops_decode,
    "peak_inference_bytes": lambda result: result.peaks,
}
NO_LOSS = "lm_head: false; a model without logits has no loss"
N_CACHES = "n_caches"
OF_CACHES: dict[str, Callable[[Inference], Mapping]] = {
    "cache_bytes": lambda result: result.caches,
    N_CACHES: lambda result: result.n_caches,
}
USES: dict[str, Use] = {
    **dict.fromkeys(OF_TRAINING, "training"),
    **dict.fromkeys(OF_INFERENCE, "inference"),
    "cache_bytes": "caches",
}
"""The use of a model whose run gives a quantity."""
READINGS: dict[Use, Mapping[str, Callable[[Any], Mapping]]] = {
    "training": OF_TRAINING,
    "inference": OF_INFERENCE,
    "caches": OF_CACHES,
}
OF_PRODUCTS = ("flops_forward", "flops_backward", "flops_decode")
OF_WEIGHTS = {"weights": "dtype", "vocabulary_dtype": "dtype"}
"""Settings on which neither products nor caches depend."""
PLAIN = OF_WEIGHTS | {"autocast": "none", "zero": 0, "expert_kernel": "scattered"}
"""Settings on which no product depends: FLOPs are those of a run without them where a run with them
has no program."""

ON_ONE_DEVICE = {
    "data_parallel": 1, "zero": 0, "gradient_buckets": "none", "pipeline_parallel": 1,
    "pipeline_schedule": "none", "pipeline_rank": "first",
}  # fmt: skip
"""Settings of devices that divide or repeat a model with an adapter."""


def terms_by_program(quantity: str, a: Architecture, run: RunConfig) -> Terms | None:
    """Return the terms of a quantity of one model; None if a part or setting has no program."""
    try:
        return _terms(quantity, a, run)
    except NoProgramError:
        return None


def without_program(quantity: str, a: Architecture, run: RunConfig) -> NoProgramError | None:
    """Return which part or setting has no program, if that is why a quantity has no terms."""
    try:
        _terms(quantity, a, run)
    except NoProgramError as error:
        return error
    return None


def _terms(quantity: str, a: Architecture, run: RunConfig) -> Terms | None:
    is_stored = quantity in OF_STORED and run.weights in FORMATS
    if is_stored and not (is_partial(run) or type(a).lists_matrices):  # without their formula
        stored = weight_bytes(type(a).program(), a, run, in_file=quantity == "file_bytes")
        return {name: Term(n_bytes) for name, n_bytes in stored.items()}
    if quantity not in USES:
        return None
    use = USES[quantity]
    if not run.zero and run.gradient_buckets == "none" and run.expert_parallel == 1:
        run = run.model_copy(update={"data_parallel": 1})  # replicas need as much each
    values, error = _of_one_model(use, a, run)
    if quantity in values:
        return terms_of(quantity, values)
    raise error or NoProgramError(f"optimizer: {run.optimizer} with tensor_parallel")


def terms_of(quantity: str, values: Quantities, read: Callable[[Any], Any] = lambda x: x) -> Terms:
    """Return the terms of a quantity; `read` evaluates sizes."""
    if quantity != "cache_bytes":
        return {name: Term(read(size)) for name, size in values[quantity].items()}
    numbers = {name: read(n) for name, n in values[N_CACHES].items()}
    totals = {name: read(n) for name, n in values[quantity].items()}
    return {name: Term(total // numbers[name], numbers[name]) for name, total in totals.items()}


@lru_cache(maxsize=256)
def _of_one_model(
    use: Use, a: Architecture, run: RunConfig
) -> tuple[Quantities, NoProgramError | None]:
    """Return the quantities of a use, and why it has no others; frames would hold its tape."""
    try:
        values, error = _quantities_and_reason(use, a, run)
    except NoProgramError as of_all:
        values, error = {}, of_all
    return values, error and error.with_traceback(None)


def has_loss(a) -> bool:
    """Whether a model has logits, and so a training step has a loss."""
    return getattr(a, "lm_head", True)


def quantities(use: Use, a: Architecture, run: RunConfig) -> Quantities:
    """Run the program of a model; its sizes may be symbols. Raises NoProgramError.

    Of a part that is only counted, the quantities are those that its tensors give; of a format or
    an autocast that a part does not know, FLOPs. Of the training of a model without logits there
    are the FLOPs of its forward pass.
    """
    return _quantities_and_reason(use, a, run)[0]


def _quantities_and_reason(
    use: Use, a: Architecture, run: RunConfig
) -> tuple[Quantities, NoProgramError | None]:
    if use == "training" and not has_loss(a):
        of_pass = {"flops_forward": run_program("inference", a, run).flops_forward}
        return of_pass, NoProgramError(NO_LOSS)
    if use == "caches":
        run = run.model_copy(update=OF_WEIGHTS)
    try:
        return _read(use, run_program(use, a, run)), None
    except NoProgramError as error:
        is_counted = is_partial(run) or isinstance(error, NotComputedError)
        known = {}
        if is_counted and use == "training" and not is_pipelined(run):
            program = type(a).program()
            step = _of_depth(lambda a: declared(program, a, run), a, run)
            known = {name: OF_TRAINING[name](step) for name in OF_TENSORS}
        if not (is_partial(run) or all(getattr(run, name) == PLAIN[name] for name in PLAIN)):
            try:
                of_plain = _read(use, run_program(use, a, run.model_copy(update=PLAIN)))
            except NoProgramError:
                raise error from None
            known |= {name: of_plain[name] for name in OF_PRODUCTS if name in of_plain}
        if not known:
            raise
        return known, error


def trained_parameters(a: Architecture, run: RunConfig) -> int:
    """Count the parameters of a model, and of its adapter, that a run trains, on all devices.

    Raises NoProgramError.
    """
    program, whole = type(a).program(), run.model_copy(update=ON_ONE_DEVICE)
    step = _of_depth(lambda a: declared(program, a, whole), a, whole)
    return sum(step.trained.values())


@lru_cache(maxsize=64)
def pass_of(
    a: Architecture,
    run: RunConfig,
    preference: Preference | None = None,
    leaves_graph: bool = False,
) -> tuple[int, int]:
    """Return what a forward pass needs next to the parameters, and what it leaves of that.

    It ends with the log-probabilities of a `preference`, or else with the states that a head would
    read. Raises NoProgramError.
    """
    program = type(a).program()
    step = of_any_depth(lambda a: pass_alone(program, a, run, leaves_graph, preference), a)
    return step.peaks[PHASE], step.saved[MODEL]


@lru_cache(maxsize=64)
def peak_of_step(a: Architecture, run: RunConfig, preference: Preference) -> int:
    """Return the peak of two training steps with the loss of a trainer. Raises NoProgramError."""
    step = run_program("training", a, run, preference)
    if not step.peaks:
        raise NoProgramError(f"optimizer: {run.optimizer}")
    return highest(*step.peaks.values())


def _read(use: Use, result: TrainingStep | Inference) -> Quantities:
    unknown = OF_PEAKS if use == "training" and not result.peaks else set()
    return {name: read(result) for name, read in READINGS[use].items() if name not in unknown}


def run_program(
    use: Use, a: Architecture, run: RunConfig, preference: Preference | None = None
) -> TrainingStep | Inference:
    """Run the program of a model, or for its caches make it only; `preference`: see above."""
    program = type(a).program()
    if use == "training":
        if not has_loss(a):
            raise NoProgramError(NO_LOSS)
        if is_pipelined(run):
            from modelbudget.quantities.pipelined_step import pipelined_step

            return pipelined_step(a, run)
        return _of_depth(lambda a: training_step(program, a, run, preference=preference), a, run)
    if not a.has_cache or (use == "caches" and a.reads_all_at_once):
        raise NoProgramError(f"{use} of {a.name()}")
    if use == "caches":
        return of_any_depth(lambda a: declared_caches(program, a, run), a, 1)
    return _of_depth(lambda a: inference(program, a, run), a, run, 1)


def _of_depth(compute: Callable, a: Architecture, run: RunConfig, n_end: int = 2) -> Any:
    """Return the quantities of a run; of all layers where adapters are in some alone."""
    return compute(a) if run.trained_from_layer else of_any_depth(compute, a, n_end)
