"""Whether a model can be trained, or used, as a sweep asks."""

from functools import cache

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, check_all
from modelbudget.architecture.run_config import MASKS, RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.sweep.sweep_file import OF_ALLOCATOR, OF_INFERENCE, OF_RUN, Sweep


@cache
def checks_of_run(family: type[Architecture], quantities: tuple[str, ...]) -> list[Constraint]:
    """Return the constraints under which a model and its run have the quantities to measure."""
    running = OF_RUN | {"resident_peak_bytes"}
    asked = [name for name in quantities if name in running]
    if not asked:
        return []
    if not family.is_language_model():
        never = (
            f"measure.quantities: {asked[0]} needs a language model: {family.name()} "
            "does not turn tokens into logits"
        )
        return [Constraint("False", never)]
    found = [*run_constraints(family)]
    if OF_INFERENCE & set(asked):
        found += constraints_of_cache(family)
    if "resident_peak_bytes" in asked:
        found.append(_backend("cpu", "resident_peak_bytes is memory of a CPU"))
    of_gpu = [name for name in asked if name in OF_ALLOCATOR - {"peak_requested_bytes"}]
    if of_gpu:
        found.append(_backend("gpu", f"{of_gpu[0]} is of a GPU"))
    return found


def _backend(allowed: str, reason: str) -> Constraint:
    message = f"backend = '{{backend}}': {reason}; allowed: {allowed}"
    return Constraint(f"backend == '{allowed}'", message)


def constraints_of_cache(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints under which a model can decode with a cache."""
    none = "no cache is known for that"
    if not family.has_cache:
        return [Constraint("False", f"measure.quantities: {family.name()} keeps no cache; {none}")]
    if "position" not in family.model_fields:
        return []
    adds = f"measure.quantities: position: {{position}} adds to scores; {none}"
    return [Constraint(f"position not in {MASKS}", adds)]


def check_run(architecture: Architecture, run: RunConfig, sweep: Sweep) -> None:
    """Raise ValueError if a model cannot be trained or used as a sweep asks."""
    checks = checks_of_run(type(architecture), tuple(sweep.measure.quantities))
    check_all(checks, vars(architecture) | vars(run))
