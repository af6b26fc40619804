"""Gated short convolution: two gates around a convolution of a few tokens (LFM2)."""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components import causal_convolution
from modelbudget.components.contract import Values
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.parameter_tensors import Tensor
from modelbudget.operations.elementwise import mul
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part
from modelbudget.operations.views import chunk

GROUP = "state space"
SIZES = ("d_short_convolution",)


class ShortConvolutionFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    d_short_convolution: Size = Field(
        0, description="mixers: short_convolution: tokens that the convolution spans"
    )


FIELDS = ShortConvolutionFields


def parameters(a: Fields) -> Values:
    """Count the projection to both gates and values, the convolution of each channel, the output.

    Amini et al. 2025 (LFM2), §2.1.
    """
    return {
        "input": 3 * a.d_model * a.d_model,
        "convolution": a.d_model * a.d_short_convolution,
        "output": a.d_model * a.d_model,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Each component is one tensor."""
    return [Tensor(name, numbers) for name, numbers in parameters(a).items()]


def flops(a: Fields, r: Run) -> Values:
    """Count the FLOPs of the projections and of the convolution of each channel."""
    channels = 2 * tokens(r) * a.d_model
    return {
        "input": 3 * channels * a.d_model,
        "convolution": channels * a.d_short_convolution,
        "output": channels * a.d_model,
    }


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Bytes of the tokens that the convolution spans."""
    return {"convolution": bytes_of(r.dtype) * r.batch * a.d_model * a.d_short_convolution}


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    input_ = make_linear("input", a.d_model, 3 * a.d_model)
    convolve = make_part(
        "convolution", causal_convolution.program, a.d_model, a.d_short_convolution, False
    )
    output = make_linear("output", a.d_model, a.d_model)

    def forward(x):
        before, after, x = chunk(input_(x), 3)
        return output(mul(after, convolve(mul(before, x))))

    return forward
