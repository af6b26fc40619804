"""Whether a sweep's training and inference can be run with a model."""

from collections.abc import Iterable
from functools import cache

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, check_all, first_mistake
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_values import MASKS, division, is_pipelined
from modelbudget.sweeps.quantity_names import (
    OF_ALLOCATOR,
    OF_CONVENTION,
    OF_INFERENCE,
    OF_PROCESS,
    OF_RUN,
    OF_TRAINING,
)
from modelbudget.sweeps.sweep_file import Sweep

_DIVISIONS = {
    "zero",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_parallel",
    "pipeline_schedule",
}
"""Settings by which several devices share one model, and which its parameters depend on."""

MEASURED = ("dtype", "float32", "float16", "bfloat16", "fp8", "int8")
"""Formats of a cache in which our modules can allocate it."""

_KEY = "measure.quantities: "
"""Begins the messages about quantities that no value of another key would give a model."""

_OF_ENGINE = "cache_bytes of an engine is predicted by the command and in Python, and not measured"
_MEASURED_CACHE = (
    Constraint(
        "cache_layout == 'contiguous'",
        f"cache_layout = '{{cache_layout}}': {_OF_ENGINE}; allowed: contiguous",
    ),
    Constraint(
        f"cache_dtype in {MEASURED} and not cache_unquantised",
        f"cache_dtype = '{{cache_dtype}}': {_OF_ENGINE}; allowed: {', '.join(MEASURED)}",
    ),
)

WHOLE = OF_INFERENCE | OF_ALLOCATOR | OF_PROCESS | OF_CONVENTION
"""Quantities of a model that one device holds alone."""


@cache
def quantity_constraints(
    family: type[Architecture], quantities: tuple[str, ...]
) -> list[Constraint]:
    """Return the constraints under which a model and its run have the quantities to measure."""
    running = OF_RUN | {"resident_peak_bytes"}
    wanted = [name for name in quantities if name in running]
    always = [*_of_conventions(family, quantities), *_of_shards(family, quantities)]
    if not wanted:
        return always
    if not family.is_language_model():
        never = (
            f"{_KEY}{wanted[0]} needs a language model: {family.name()} "
            "does not turn tokens into logits"
        )
        return [Constraint("False", never)]
    constraints = [*always, *run_constraints(family)]
    if OF_INFERENCE & set(wanted):
        constraints += constraints_of_cache(family)
    constraints += [
        Constraint(
            f"{field} == '{alone}'",
            f"{field} = '{{{field}}}': {name} is not known, since kernels that read this cache are "
            f"not; allowed: {field}: {alone}",
        )
        for name in wanted
        if name in ("peak_inference_bytes", "flops_decode")
        for field, alone in (("cache_dtype", "dtype"), ("cache_layout", "contiguous"))
    ]
    of_training = [name for name in wanted if name not in OF_INFERENCE]
    if of_training and "lm_head" in family.model_fields:
        no_loss = f"lm_head = false: {of_training[0]} needs logits and a loss; allowed: true"
        constraints.append(Constraint("lm_head", no_loss))
    if "resident_peak_bytes" in wanted:
        constraints.append(_backend("cpu", "resident_peak_bytes is memory of a CPU"))
    of_gpu = [name for name in wanted if name in OF_ALLOCATOR - {"peak_requested_bytes"}]
    if of_gpu:
        constraints.append(_backend("gpu", f"{of_gpu[0]} is of a GPU"))
    return constraints


def _of_conventions(family: type[Architecture], quantities: tuple[str, ...]) -> list[Constraint]:
    """Return a constraint that never holds for each convention that says nothing of a family."""
    return [
        Constraint("False", f"{_KEY}{name} is not known here: {why}")
        for name in quantities
        if name in BY_NAME and (why := BY_NAME[name].why_not(family))
    ]


def _of_shards(family: type[Architecture], quantities: tuple[str, ...]) -> list[Constraint]:
    """Return the constraints under which devices may share a family and its quantities."""
    constraints = [
        Constraint(
            f"{field} == {alone!r}",
            f"{field} = {{{field}}}: {name} is not known of {parts}; allowed: {field}: {alone}",
        )
        for name in [name for name in quantities if name in WHOLE][:1]
        for field, alone, parts in (
            ("zero", 0, "shards"),
            ("gradient_buckets", "none", "buckets"),
            ("context_parallel", 1, "parts of the length"),
            ("expert_parallel", 1, "experts of several devices"),
            ("pipeline_schedule", "none", "stages"),
        )
    ]
    constraints += _of_shares(family, quantities)
    return [
        *constraints,
        *(constraint for constraint in run_constraints(family) if constraint.names & _DIVISIONS),
    ]


def _of_shares(family: type[Architecture], quantities: tuple[str, ...]) -> list[Constraint]:
    """Return the constraints under which devices that compute one model have the quantities."""
    setting = "tensor_parallel = {tensor_parallel}"
    constraints = []
    if whole := [name for name in quantities if name in WHOLE - OF_INFERENCE]:
        no_shares = f"{setting}: {whole[0]} is not known of shares; allowed: tensor_parallel: 1"
        constraints.append(Constraint("tensor_parallel == 1", no_shares))
    if of_inference := [name for name in quantities if name in OF_INFERENCE]:
        of_parts = f"{of_inference[0]} is not known of parts of the length; allowed: false"
        constraints.append(
            Constraint("not sequence_parallel", f"sequence_parallel = true: {of_parts}")
        )
    trained = [name for name in quantities if name in OF_TRAINING - {"flops_forward"}]
    if trained and "n_kv_head" in family.model_fields:
        copied = f"{setting}: {trained[0]} is not known where several devices have the same head"
        constraints.append(
            Constraint(
                "n_kv_head == 1 or n_kv_head % tensor_parallel == 0",
                f"n_kv_head = {{n_kv_head}}: {copied}; allowed: a divisor of n_kv_head",
                when="tensor_parallel > 1",
            )
        )
    return constraints


def _backend(allowed: str, reason: str) -> Constraint:
    message = f"backend = '{{backend}}': {reason}; allowed: {allowed}"
    return Constraint(f"backend == '{allowed}'", message)


def constraints_of_cache(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints under which a model can decode with a cache."""
    none = "no cache is known for that"
    if not family.has_cache:
        return [Constraint("False", f"{_KEY}{family.name()} keeps no cache; {none}")]
    if "position" not in family.model_fields:
        return []
    adds = f"{_KEY}position: {{position}} adds to scores; {none}"
    return [Constraint(f"position not in {MASKS}", adds)]


def undefined(quantities: Iterable[str], architecture: Architecture, run: RunConfig) -> str | None:
    """Return why a model and its run do not have some quantities, as no sweep names it."""
    checks = quantity_constraints(type(architecture), tuple(quantities))
    mistake = first_mistake(checks, vars(architecture) | vars(run))
    return mistake and mistake.removeprefix(_KEY)


def undefined_of_class(quantity: str, a: Architecture, run: RunConfig) -> str | None:
    """Return why a class of `transformers` does not have a quantity.

    What our modules and their kernels cannot compute is left out, since the class may.
    """
    of_ours = run_constraints(type(a))
    checks = [check for check in quantity_constraints(type(a), (quantity,)) if check not in of_ours]
    mistake = first_mistake([*checks, *of_any_code(type(a))], vars(a) | vars(run))
    return mistake and mistake.removeprefix(_KEY)


def of_any_code(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints of a run, whoever computes: the length of learned positions."""
    of_run = run_constraints(family) if family.is_language_model() else []
    return [constraint for constraint in of_run if "n_ctx" in constraint.names]


def check_quantities(architecture: Architecture, run: RunConfig, sweep: Sweep) -> None:
    """Raise ValueError if training or inference of a sweep cannot be run with a model."""
    device = sweep.measure.device
    if division(run) and device in ("cpu", "cuda"):
        raise ValueError(
            f"measure.device = {device!r}: {division(run)} is measured without a device, on meta "
            "with a fake process group; allowed: auto, meta, none"
        )
    if sweep.fit and is_pipelined(run):
        raise ValueError(
            f"fit: not known with {division(run)}, whose stages and microbatches must divide what "
            "is solved for; allowed: pipeline_schedule: none"
        )
    if OF_INFERENCE & set(sweep.measure.quantities):
        check_all(_MEASURED_CACHE, vars(run))
    checks = quantity_constraints(type(architecture), tuple(sweep.measure.quantities))
    check_all(checks, vars(architecture) | vars(run))
