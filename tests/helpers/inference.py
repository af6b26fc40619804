"""Inference of one model, predicted and measured."""

import torch

from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.cache import caching
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.predict.formula import formula
from modelbudget.sweeps.check_quantities import constraints_of_cache
from modelbudget.sweeps.quantity_names import OF_INFERENCE


def measured_inference(a, run: RunConfig, quantities=OF_INFERENCE) -> dict[str, dict[str, int]]:
    with uninitialised():
        model = build(a, "meta", run.dtype)
    return infer(model, run, quantities)


def cache_is_known(a) -> bool:
    return first_mistake(constraints_of_cache(type(a)), vars(a)) is None


def predicted_inference(a, run: RunConfig, quantity: str) -> dict[str, int]:
    """Return what a closed formula says, or a program where none holds."""
    terms, holds = formula(type(a), quantity, a, run)
    assert holds, quantity
    return {name: term.total for name, term in terms.items() if term.total}


def logits_at_once_and_in_turn(a) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 2 × 7 tokens: from one pass, and token by token with a cache."""
    model = build(a, "cpu", "float64").eval()
    torch.manual_seed(0)
    initialise(model)
    tokens = torch.randint(a.n_vocab, (2, 7))
    with torch.no_grad():
        at_once = model(tokens)
        with caching(model, 2, 7):
            steps = [model(tokens[:, [i]]) for i in range(7)]
    return at_once, torch.cat(steps, 1)
