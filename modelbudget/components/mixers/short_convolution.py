"""Gated short convolution: two gates around a convolution of a few tokens (LFM2)."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import causal_convolution
from modelbudget.components.contract import Values
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part

GROUP = "state space"
SIZES = ("d_short_convolution",)


def parameters(a: Fields) -> Values:
    """Count the projection to both gates and values, the convolution of each channel, the output.

    Amini et al. 2025 (LFM2), §2.1.
    """
    return {
        "input": 3 * a.d_model * a.d_model,
        "convolution": a.d_model * a.d_short_convolution,
        "output": a.d_model * a.d_model,
    }


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    input_ = make_linear("input", a.d_model, 3 * a.d_model)
    convolve = make_part(
        "convolution", causal_convolution.program, a.d_model, a.d_short_convolution, False
    )
    output = make_linear("output", a.d_model, a.d_model)

    def forward(x):
        before, after, x = input_(x).chunk(3)
        return output(after * convolve(before * x))

    return forward
