"""Inference of one model, predicted and measured."""

from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.infer import infer
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.check_quantities import constraints_of_cache
from modelbudget.sweeps.quantities import OF_INFERENCE


def measured_inference(a, run: RunConfig) -> dict[str, dict[str, int]]:
    with uninitialised():
        model = build(a, "meta", run.dtype)
    return infer(model, run, OF_INFERENCE)


def cache_is_known(a) -> bool:
    return first_mistake(constraints_of_cache(type(a)), vars(a)) is None


def predicted_inference(a, run: RunConfig, quantity: str) -> dict[str, int]:
    terms = getattr(a, quantity)(a, run)
    return {name: term.total for name, term in terms.items() if term.total}
