"""A convolution for each channel that sees only what came before."""

from torch import nn
from torch.nn import functional as F


class CausalConvolution(nn.Conv1d):
    """(batch, length, n_channel) to the same shape, over a token and the span − 1 before it."""

    def __init__(self, n_channel: int, span: int):
        super().__init__(n_channel, n_channel, span, groups=n_channel)

    def forward(self, x):
        padded = F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))
        return super().forward(padded).transpose(1, 2)
