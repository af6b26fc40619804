"""Experts next to an MLP, whose results are normalised and added up (Gemma 4 26B-A4B).

transformers, models/gemma4/modeling_gemma4.py: `Gemma4TextDecoderLayer`, `Gemma4TextRouter`. The
router reads the states themselves, the experts normalised ones; the chosen experts' weights have a
sum of 1, times a learned number of each expert.
"""

from types import SimpleNamespace

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.common.attributes import with_attributes
from modelbudget.components import norm
from modelbudget.components.feed_forward import moe
from modelbudget.memory.parameter_tensors import Tensor, vector
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.reductions import softmax

NORMS = ("mlp_branch", "moe", "moe_branch")
"""The norms of the MLP's result, of what the experts read, and of their result."""


def _of_moe(a: Fields) -> Fields:
    """Return the fields of a mixture without shared experts and biases of its router."""
    return SimpleNamespace(**vars(a), d_shared=0, shared_gate=False, router_bias="none")


def of_layer(a: Fields, n_expert) -> list[Tensor]:
    """Return the tensors of the router and of so many experts."""
    is_there = positive(a.n_expert)
    return [
        vector("router.scale", a.d_model, is_there),
        vector("router.expert_scale", a.n_expert, is_there),
        *moe.all_tensors(_of_moe(a), n_expert),
    ]


def program(a: Fields, r: Run):
    """Add to an MLP's result of states (batch, length, d_model) what experts make of the states."""
    norms = {name: norm.make(f"norm.{name}", a, r) for name in NORMS}
    experts = make_part("moe", moe.program, _of_moe(a), r, lambda a: _router(a, r))

    def forward(of_mlp, x):
        of_mlp = norms["mlp_branch"](of_mlp)
        return of_mlp + norms["moe_branch"](experts(norms["moe"](x), x))

    return forward


def _router(a: Fields, r: Run):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen)."""
    weight, scale = parameter("weight", a.n_expert, a.d_model), parameter("scale", a.d_model)
    expert_scale = parameter("expert_scale", a.n_expert)
    normalise, change = norm.rms_norm(r), moe.change_of("router", weight)

    def forward(tokens, normalised=False):
        scaled = normalise(tokens, 1, None) * scale
        logits = linear(scaled, weight if change is None else change.read())
        weights, chosen = softmax(logits).topk(a.n_expert_per_token)
        weights = weights / weights.sum([-1], keepdim=True)
        return weights * take_rows(expert_scale, chosen), chosen

    return with_attributes(forward, change=change)
