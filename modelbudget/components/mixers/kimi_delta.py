"""Kimi Delta Attention: a gated delta rule with a decay for each channel of a key.

Kimi Team 2025 (arXiv 2510.26692). Fields are those of Gated DeltaNet; values are as wide as keys.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import recurrent_state
from modelbudget.components.contract import Values
from modelbudget.components.mixers.gated_deltanet import (
    by_head,
    head_norm,
    normalised,
    written_out_convolution,
)
from modelbudget.components.weight_formats import Matrix
from modelbudget.operations.elementwise import silu, softplus
from modelbudget.operations.joining import cat, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.tape import empty
from modelbudget.operations.views import heads_of, steps_over

GROUP = "state space"
LOOPS_OVER_TOKENS = True
SIZES = ("n_linear_head", "d_linear_key", "d_linear_convolution")


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections: those of decay and gate go through d_linear_key channels."""
    inner, width = a.n_linear_head * a.d_linear_key, a.d_linear_key
    return [
        *(Matrix(name, a.d_model, inner) for name in ("query", "key", "value")),
        Matrix("decay_down", a.d_model, width),
        Matrix("decay_up", width, inner),
        Matrix("beta", a.d_model, a.n_linear_head),
        Matrix("gate_down", a.d_model, width),
        Matrix("gate_up", width, inner),
        Matrix("output", inner, a.d_model),
    ]


def parameters(a: Fields) -> Values:
    """Kimi Team 2025, §4: projections, convolution, a rate for each head, a step for each channel.

    The norm of a head's result has one scale for all heads.
    """
    inner = a.n_linear_head * a.d_linear_key
    return {m.name: m.d_in * m.d_out for m in matrices(a)} | {
        "rate": a.n_linear_head,
        "step": inner,
        "convolution": 3 * inner * a.d_linear_convolution,
        "norm": a.d_linear_key,
    }


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    n_head, width = a.n_linear_head, a.d_linear_key
    inner, precise = n_head * width, at_least_float32(r.dtype)
    rate, step_bias = parameter("rate", n_head), parameter("step", inner)
    query_of = make_linear("query", a.d_model, inner)
    key_of = make_linear("key", a.d_model, inner)
    value_of = make_linear("value", a.d_model, inner)
    span = a.d_linear_convolution
    convolve = make_part("convolution", written_out_convolution, 3 * inner, span)
    decay_down = make_linear("decay_down", a.d_model, width)
    decay_up = make_linear("decay_up", width, inner)
    beta_of = make_linear("beta", a.d_model, n_head)
    gate_down = make_linear("gate_down", a.d_model, width)
    gate_up = make_linear("gate_up", width, inner)
    norm = make_part("norm", head_norm, r, width)
    output = make_linear("output", inner, a.d_model)
    cache = recurrent_state.declare((n_head, width, width), dtype=precise)

    def forward(x):
        mixed = cat((query_of(x), key_of(x), value_of(x)))
        mixed = silu(convolve(mixed, 0)).to(precise)
        query, key, value = mixed.chunk(3, 1)
        query = normalised(query, n_head) * 0.1
        key = normalised(key, n_head)
        value = by_head(value, n_head)
        step = heads_of((decay_up(decay_down(x)) + step_bias).to(precise), n_head, width)
        decay = (-rate.to(precise).exp().unsqueeze(1).unsqueeze(2) * softplus(step)).exp()
        beta = beta_of(x).sigmoid().to(precise).transpose(1, 2)
        shape = x.shape[0], n_head, width, width
        state = cache.tensors[0] if cache else empty(shape, precise)
        y, state = _scan(query, key, value, beta, decay, state)
        gate = gate_up(gate_down(x)).unflatten(2, (n_head, width))
        return output((norm(y.to(x.dtype)) * gate.sigmoid()).flatten(2))

    return forward


def _scan(query, key, value, beta, decay, state):
    """S ← (1 − β k kᵀ) diag(decay) S + β k vᵀ;  y = qᵀ S.

    query, key, value, decay (batch, n_head, length, d), beta (batch, n_head, length), state (batch,
    n_head, d, d).
    """
    outputs = []
    for q, k, v, b, kept in steps_over(2, query, key, value, beta, decay):
        state = kept.unsqueeze(-1) * state
        known = (k.unsqueeze(-2) @ state).squeeze(-2)
        state = state + k.unsqueeze(-1) * ((v - known) * b.unsqueeze(-1)).unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return stack(outputs, 1, query.shape[2]), state
