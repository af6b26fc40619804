"""Griffin's recurrent block around an RG-LRU (De et al. 2024, arXiv 2402.19427).

RG-LRU: a real-gated linear recurrent unit, one state for each channel.
"""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import bytes_of, state_bytes, tokens
from modelbudget.components.contract import ALONE, Place, Values, no_autocast, valid_if
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor

GROUP = "state space"
SIZES = ("n_lru_block", "d_lru_block", "d_lru_convolution")


class RGLRUFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_lru_block: Size = Field(
        0, description="mixers: rg_lru: blocks of channels, each with its own matrices of the gates"
    )
    d_lru_block: Size = Field(0, description="mixers: rg_lru: channels of one block")
    d_lru_convolution: Size = Field(
        0, description="mixers: rg_lru: tokens that the convolution spans"
    )


FIELDS = RGLRUFields


def _d_lru(a: Fields):
    """Channels of the recurrence."""
    return a.n_lru_block * a.d_lru_block


def tensors(a: Fields) -> list[Tensor]:
    """De et al. 2024, §2.3 and §2.4: both branches, the convolution, both gates, the output.

    Λ (`decay`) has one number for each channel. The matrices of the gates are block-diagonal
    (appendix A). All projections have biases.
    """
    projection, block = a.d_model * _d_lru(a), _d_lru(a) * a.d_lru_block
    with_bias = {
        "gate": (projection, _d_lru(a)),
        "input": (projection, _d_lru(a)),
        "convolution": (_d_lru(a) * a.d_lru_convolution, _d_lru(a)),
        "input_gate": (block, _d_lru(a)),
        "recurrence_gate": (block, _d_lru(a)),
        "output": (projection, a.d_model),
    }
    pairs = (Tensor(name, numbers) for name, both in with_bias.items() for numbers in both)
    return [Tensor("decay", _d_lru(a)), *pairs]


def parameters(a: Fields) -> Values:
    """Sum the tensors of each component."""
    found: Values = {}
    for tensor in tensors(a):
        found[tensor.name] = found.get(tensor.name, 0) + tensor.numbers
    return found


@valid_if(no_autocast)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    Inputs of the projections, of the convolution with its padding, and of both gates. The
    recurrence is written out: before and after GELU, both gates, a, √(1 − a²), the gated input,
    states before and after each token, and −8 · softplus(Λ).
    """
    size, channels = bytes_of(r.dtype), bytes_of(r.dtype) * tokens(r) * _d_lru(a)
    return {
        "gate": place.saves_input * size * tokens(r) * a.d_model,
        "convolution": size * r.batch * _d_lru(a) * (r.length + a.d_lru_convolution - 1),
        "recurrence_gate": channels,
        "": 9 * channels + size * _d_lru(a),
        "output": channels,
    }


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token; the recurrence has no matrix product."""
    n = 2 * tokens(r)
    block = n * _d_lru(a) * a.d_lru_block
    return {
        "gate": n * a.d_model * _d_lru(a),
        "input": n * a.d_model * _d_lru(a),
        "convolution": n * _d_lru(a) * a.d_lru_convolution,
        "input_gate": block,
        "recurrence_gate": block,
        "output": n * a.d_model * _d_lru(a),
    }


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the states and of the tokens that the convolution spans."""
    return {
        "": state_bytes(r) * r.batch * _d_lru(a),
        "convolution": bytes_of(r.dtype) * r.batch * _d_lru(a) * a.d_lru_convolution,
    }
