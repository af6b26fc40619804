"""LM head for hidden states of any width."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.embedding import padded


class LMHead(nn.Module):
    """States (batch, length, width) to logits (batch, length, n_vocab).

    Tied means the very Parameter of a token embedding, and not a copy.
    """

    def __init__(self, n_vocab: int, width: int, bias: bool, tied_to: Any):
        super().__init__()
        self.tied = tied_to is not None
        self.weight = tied_to.weight if self.tied else nn.Parameter(torch.empty(n_vocab, width))
        self.bias = nn.Parameter(torch.empty(n_vocab)) if bias else None

    def reset_parameters(self):
        if not self.tied:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def make_head(a, token: Any, width: int) -> LMHead:
    """Build the architecture's head for hidden states of `width`, tied to `token` or not."""
    return LMHead(padded(a), width, a.head_bias, token if a.tied else None)
