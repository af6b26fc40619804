"""Kimi Delta Attention: a gated delta rule with a decay for each channel of a key.

Kimi Team 2025 (arXiv 2510.26692). Fields are those of Gated DeltaNet; values are as wide as keys.
"""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import bytes_of, exact_bytes, tokens
from modelbudget.components.contract import Values
from modelbudget.components.mixers.gated_deltanet import FIELDS
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor

__all__ = ["FIELDS"]

GROUP = "state space"
SIZES = ("n_linear_head", "d_linear_key", "d_linear_convolution")


def _matrices(a: Fields) -> Values:
    """Numbers of the projections: those of decay and gate go through d_linear_key channels."""
    inner = a.n_linear_head * a.d_linear_key
    whole, down, up = a.d_model * inner, a.d_model * a.d_linear_key, a.d_linear_key * inner
    return {
        "query": whole,
        "key": whole,
        "value": whole,
        "decay_down": down,
        "decay_up": up,
        "beta": a.d_model * a.n_linear_head,
        "gate_down": down,
        "gate_up": up,
        "output": whole,
    }


def parameters(a: Fields) -> Values:
    """Kimi Team 2025, §4: projections, convolution, a rate for each head, a step for each channel.

    The norm of a head's result has one scale for all heads.
    """
    inner = a.n_linear_head * a.d_linear_key
    return _matrices(a) | {
        "rate": a.n_linear_head,
        "step": inner,
        "convolution": 3 * inner * a.d_linear_convolution,
        "norm": a.d_linear_key,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor."""
    return [Tensor(name, numbers) for name, numbers in parameters(a).items()]


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token; a token reads its state twice (§3, eq. 1)."""
    n = 2 * tokens(r)
    read = n * a.n_linear_head * a.d_linear_key * a.d_linear_key
    return {name: n * numbers for name, numbers in _matrices(a).items()} | {"": 2 * read}


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the state, in at least single precision, and of the convolution's tokens.

    The size does not depend on the number of tokens.
    """
    inner = r.batch * a.n_linear_head * a.d_linear_key
    span = bytes_of(r.dtype) * 3 * inner * a.d_linear_convolution
    return {"": exact_bytes(r.dtype) * inner * a.d_linear_key, "convolution": span}
