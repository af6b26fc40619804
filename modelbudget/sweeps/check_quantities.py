"""Whether a sweep's training and inference can be run with a model."""

from collections.abc import Iterable, Iterator
from functools import cache, partial

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, check_all, first_mistake
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_values import MASKS, division, is_pipelined
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
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
    "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel",
    "pipeline_schedule",
}  # fmt: skip
"""Settings by which several devices share one model, and which its parameters depend on."""

_KEY = "measure.quantities: "
"""Begins the messages about quantities that no value of another key would give a model."""

_GROUPS = {
    "one device": OF_INFERENCE | OF_ALLOCATOR | OF_PROCESS | OF_CONVENTION,
    "one device without inference": OF_ALLOCATOR | OF_PROCESS | OF_CONVENTION,
    "inference": OF_INFERENCE,
    "decoding": {"peak_inference_bytes", "flops_decode"},
    "gradients": OF_TRAINING - {"flops_forward"},
    "a loss": OF_TRAINING - {"flops_forward"} | OF_ALLOCATOR | {"resident_peak_bytes"},
    "a CPU": {"resident_peak_bytes"},
    "a GPU": OF_ALLOCATOR - {"peak_requested_bytes"},
}
"""Quantities that have constraints in common."""


_rules = cache(partial(load_yaml, CONFIGS / "quantity_constraints.yaml"))


def _constraints(
    section: str, family: type[Architecture], quantities: Iterable[str]
) -> Iterator[Constraint]:
    """Yield the constraints of a section of the file that concern a family and quantities."""
    for rule in _rules()[section]:
        names = [name for name in quantities if name in _GROUPS[rule["of"]]]
        if names and ("field" not in rule or rule["field"] in family.model_fields):
            message = rule["message"].replace("{quantity}", names[0])
            yield Constraint(rule["holds"], message, rule.get("when", ""))


@cache
def quantity_constraints(
    family: type[Architecture], quantities: tuple[str, ...]
) -> list[Constraint]:
    """Return the constraints under which a model and its run have the quantities to measure."""
    running = OF_RUN | {"resident_peak_bytes"}
    wanted = [name for name in quantities if name in running]
    always = [
        *(
            Constraint("False", f"{_KEY}{name} is not known here: {why}")
            for name in quantities
            if name in BY_NAME and (why := BY_NAME[name].why_not(family))
        ),
        *_constraints("shared", family, quantities),
        *(constraint for constraint in run_constraints(family) if constraint.names & _DIVISIONS),
    ]
    if not wanted:
        return always
    if not family.is_language_model():
        never = (
            f"{_KEY}{wanted[0]} needs a language model: {family.name()} "
            "does not turn tokens into logits"
        )
        return [Constraint("False", never)]
    constraints = [*dict.fromkeys((*always, *run_constraints(family)))]
    of_cache = OF_INFERENCE - ({"peak_inference_bytes"} if family.caches_only_if else set())
    if of_cache & set(wanted):
        constraints += constraints_of_cache(family)
    return [*constraints, *_constraints("step", family, wanted)]


def constraints_of_cache(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints under which a model can decode with a cache."""
    none = "no cache is known for that"
    if switch := family.caches_only_if:
        once = f"{_KEY}{family.name()} keeps no cache: its inference is one pass over all tokens"
        return [Constraint(switch, once)]
    if not family.has_cache:
        return [Constraint("False", f"{_KEY}{family.name()} keeps no cache; {none}")]
    if not {"position", "mixers"} <= family.model_fields.keys():
        return []
    projects = f"{_KEY}position: {{position}} projects distances; {none}"
    adds = f"{_KEY}position: {{position}} adds to scores of a window; {none}"
    return [
        Constraint("position != 'relative'", projects),
        Constraint(f"position not in {MASKS}", adds, when="'sliding_attention' in mixers"),
    ]


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
    quantities, family = sweep.measure.quantities, type(architecture)
    check_all(_constraints("measured", family, quantities), vars(run))
    checks = quantity_constraints(family, tuple(quantities))
    check_all(checks, vars(architecture) | vars(run))
