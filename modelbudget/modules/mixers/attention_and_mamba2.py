"""Attention and Mamba-2's mixer side by side."""

from torch import nn

from modelbudget.modules.mixers import attention, mamba2


class AttentionAndMamba2(nn.Module):
    """States (batch, length, d_model) to the sum of both parts' outputs, of the same shape."""

    reads_positions = True

    def __init__(self, a):
        super().__init__()
        self.attention = attention.make(a)
        self.mamba2 = mamba2.make(a)

    def forward(self, x, bias=None, rotation=None):
        return self.attention(x, bias, rotation) + self.mamba2(x)


make = AttentionAndMamba2
