"""sLSTM: an LSTM with exponential gates and a memory mixed within heads (Beck et al. 2024)."""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import bytes_of, state_bytes, tokens
from modelbudget.components.contract import Values
from modelbudget.components.passes import decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor

GROUP = "recurrence"
SIZES = ("n_slstm_head", "d_slstm_head", "d_slstm_convolution")

GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


class SLSTMFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_slstm_head: Size = Field(0, description="mixers: slstm: heads, within which memory is mixed")
    d_slstm_head: Size = Field(0, description="mixers: slstm: channels of one head")
    d_slstm_convolution: Size = Field(
        0, description="mixers: slstm: tokens that the convolution of both gates spans"
    )


FIELDS = SLSTMFields
CONSTRAINTS = (
    Constraint(
        "n_slstm_head * d_slstm_head == d_model",
        "n_slstm_head · d_slstm_head = {n_slstm_head * d_slstm_head} is not d_model = {d_model}; "
        "the heads share the channels out among them",
        when="'slstm' in mixers",
    ),
)


def parameters(a: Fields) -> Values:
    """Beck et al. 2024 (arXiv 2405.04517), §2.2; code of NX-AI/xlstm, blocks/slstm/.

    All matrices are square within each head: those of the token, for two gates after a convolution
    with a bias and a SiLU, and those of the states before, for all four, with a bias. The norm
    of each head has a scale for each channel. There is no output projection.
    """
    square = a.d_model * a.d_slstm_head
    return {
        "convolution": a.d_model * a.d_slstm_convolution + a.d_model,
        **dict.fromkeys(GATES, square),
        "hidden": 4 * square,
        "": 4 * a.d_model,
        "norm": a.d_model,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor, and the bias of the convolution another."""
    found = parameters(a) | {"convolution": a.d_model * a.d_slstm_convolution}
    convolution = found.pop("convolution")
    biases = Tensor("", found.pop(""))
    own = [Tensor("convolution", convolution), Tensor("convolution", a.d_model)]
    return [biases, *own, *(Tensor(name, numbers) for name, numbers in found.items())]


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token; the rest of the recurrence has no product."""
    channels = 2 * tokens(r) * a.d_model
    return {
        "convolution": channels * a.d_slstm_convolution,
        **dict.fromkeys(GATES, channels * a.d_slstm_head),
        "hidden": 4 * channels * a.d_slstm_head,
    }


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, but that the states before the first token need no gradient."""
    found = {name: 2 * value for name, value in flops(a, r).items()}
    of_first = 4 * 2 * r.batch * a.d_model * a.d_slstm_head
    return found | {"hidden": found["hidden"] - of_first}


flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the states of each channel, and of the tokens that are convolved.

    Hidden state, cell, normaliser and stabiliser (Beck et al. 2024, eq. 8 to 17).
    """
    channels = r.batch * a.d_model
    return {
        "": state_bytes(r) * 4 * channels,
        "convolution": bytes_of(r.dtype) * channels * a.d_slstm_convolution,
    }
