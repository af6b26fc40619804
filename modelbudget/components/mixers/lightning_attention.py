"""Lightning attention: linear attention with a fixed decay for each head (MiniMax-01).

Qin et al. 2024 (arXiv 2401.04658); MiniMax 2025 (arXiv 2501.08313), §2.2. Heads are those of
attention, each with its own key and value.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import recurrent_state
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.contract import Values
from modelbudget.components.mixers.gated_deltanet import head_norm
from modelbudget.operations.elementwise import silu, without_gradient
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over

GROUP = "state space"
LOOPS_OVER_TOKENS = True
SIZES = ()
FIELDS = AttentionFields


def parameters(a: Fields) -> Values:
    """Count the projections, and an RMSNorm of the result over all heads; decays are not learned.

    The gate multiplies the norm's output (MiniMax 2025, figure 3).
    """
    inner = a.n_head * a.d_head
    return {
        "query_key_value": 3 * a.d_model * inner,
        "gate": a.d_model * inner,
        "output": inner * a.d_model,
        "norm": inner,
    }


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    inner = a.n_head * a.d_head
    query_key_value = make_linear("query_key_value", a.d_model, 3 * inner)
    gate = make_linear("gate", a.d_model, inner)
    norm = make_part("norm", head_norm, r, inner)
    output = make_linear("output", inner, a.d_model)
    shape = a.n_head, a.d_head, a.d_head
    cache = recurrent_state.declare(shape)

    def forward(x):
        mixed = silu(query_key_value(x)).unflatten(2, (a.n_head, 3 * a.d_head))
        query, key, value = mixed.split([a.d_head] * 3)
        state = cache.tensors[0] if cache else empty((x.shape[0], *shape), x.dtype)
        decay, outputs = _decay(a.n_head, x.dtype), []
        for q, k, v in steps_over(1, query, key, value):
            state = decay * state + k.unsqueeze(-1) * v.unsqueeze(-2)
            outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
        y = norm(stack(outputs, 1, x.shape[1]).flatten(2))
        return output(gate(x).sigmoid() * y)

    return forward


def _decay(n_head, dtype: str):
    """exp(−2^(−8 h / n_head)) for the heads h = 1, 2, …: (n_head, 1, 1)."""
    heads = empty((n_head,), dtype)
    # exp(-exp2(-8 * heads / n_head)): each operation frees its argument.
    y = heads
    for _ in range(4):
        y = without_gradient(y)
    return y.exp().unsqueeze(1).unsqueeze(2)
