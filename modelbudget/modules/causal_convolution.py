"""A convolution for each channel that sees only what came before."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates


class CausalConvolution(KeepsStates, nn.Conv1d):
    """(batch, length, n_channel) to the same shape, over a token and the span − 1 before it."""

    def __init__(self, n_channel: int, span: int, bias: bool = True):
        super().__init__(n_channel, n_channel, span, groups=n_channel, bias=bias)
        # One more than the next token needs, as in the code of Mamba's authors.
        self.shapes = [(n_channel, span)]

    def forward(self, x):
        span, x = self.kernel_size[0], x.transpose(1, 2)
        if not self.cache:
            return super().forward(F.pad(x, (span - 1, 0))).transpose(1, 2)
        seen = torch.cat((self.cache.tensors[0], x), dim=-1)
        self.cache.keep(seen[..., -span:])
        return super().forward(seen[..., 1:]).transpose(1, 2)
