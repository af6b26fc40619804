"""Experts next to an MLP, whose results are normalised and added up (Gemma 4 26B-A4B).

transformers, models/gemma4/modeling_gemma4.py: `Gemma4TextDecoderLayer`, `Gemma4TextRouter`. The
router reads the states themselves, the experts normalised ones; the chosen experts' weights have a
sum of 1, times a learned number of each expert.
"""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.common.attributes import with_attributes
from modelbudget.components import norm
from modelbudget.components.feed_forward import moe
from modelbudget.memory.parameter_tensors import Tensor, vector
from modelbudget.operations.joining import rows as take_rows
from modelbudget.operations.part import make_part, parameter

NORMS = ("mlp_branch", "moe", "moe_branch")
"""The norms of the MLP's result, of what the experts read, and of their result."""


def of_layer(a: Fields, n_expert) -> list[Tensor]:
    """Return the tensors of the router and of so many experts."""
    is_there = positive(a.n_expert)
    return [
        vector("router.scale", a.d_model, is_there),
        vector("router.expert_scale", a.n_expert, is_there),
        *moe.all_tensors(a, n_expert),
    ]


def program(a: Fields, r: Run):
    """Add to an MLP's result of states (batch, length, d_model) what experts make of the states."""
    norms = {name: norm.make(f"norm.{name}", a, r) for name in NORMS}
    experts = make_part("moe", moe.program, a, r, lambda a: _router(a, r))

    def forward(of_mlp, x):
        of_mlp = norms["mlp_branch"](of_mlp)
        return of_mlp + norms["moe_branch"](experts(norms["moe"](x), x))

    return forward


def _router(a: Fields, r: Run):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen)."""
    choose, normalise = moe.router_of(a), norm.rms_norm(r)
    scale, expert_scale = parameter("scale", a.d_model), parameter("expert_scale", a.n_expert)

    def forward(tokens, normalised=False):
        scaled = normalise(tokens, 1, None) * scale  # live to the end
        weights, chosen = choose(scaled, normalised)
        weights = weights / weights.sum([-1], keepdim=True)
        return weights * take_rows(expert_scale, chosen), chosen

    return with_attributes(forward, change=choose.change)
