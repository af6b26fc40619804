"""Gated short convolution."""

from torch import nn

from modelbudget.modules.causal_convolution import CausalConvolution


class ShortConvolution(nn.Module):
    """States (batch, length, d_model) to states of the same shape.

    The second gate multiplies the convolution of what the first gate lets through.
    """

    def __init__(self, a):
        super().__init__()
        self.input = nn.Linear(a.d_model, 3 * a.d_model, bias=False)
        self.convolution = CausalConvolution(a.d_model, a.d_short_convolution, bias=False)
        self.output = nn.Linear(a.d_model, a.d_model, bias=False)

    def forward(self, x):
        before, after, x = self.input(x).chunk(3, -1)
        return self.output(after * self.convolution(before * x))


make = ShortConvolution
