"""Lightning attention: linear attention with a fixed decay for each head (MiniMax-01).

Qin et al. 2024 (arXiv 2401.04658); MiniMax 2025 (arXiv 2501.08313), §2.2. Heads are those of
attention, each with its own key and value.
"""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components.attention.fields import AttentionFields
from modelbudget.components.contract import Values
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor

GROUP = "state space"
SIZES = ()
FIELDS = AttentionFields


def _matrices(a: Fields) -> Values:
    inner = a.n_head * a.d_head
    return {
        "query_key_value": 3 * a.d_model * inner,
        "gate": a.d_model * inner,
        "output": inner * a.d_model,
    }


def parameters(a: Fields) -> Values:
    """Count the projections, and an RMSNorm of the result over all heads; decays are not learned.

    The gate multiplies the norm's output (MiniMax 2025, figure 3).
    """
    return _matrices(a) | {"norm": a.n_head * a.d_head}


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor."""
    return [Tensor(name, numbers) for name, numbers in parameters(a).items()]


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each number of a state that is read."""
    n = 2 * tokens(r)
    read = n * a.n_head * a.d_head * a.d_head
    return {name: n * numbers for name, numbers in _matrices(a).items()} | {"": read}


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the states: d_head × d_head for each head."""
    return {"": bytes_of(r.dtype) * r.batch * a.n_head * a.d_head * a.d_head}
