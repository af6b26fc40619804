"""LM head for hidden states of any width."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.embedding import padded

CAP = 30.0
"""The largest logit of a head with a cap, as in Gemma 2 (Gemma Team 2024b, §2)."""


class LMHead(nn.Module):
    """States (batch, length, width) to logits (batch, length, n_vocab).

    Tied means the Parameter of the token embedding itself, not a copy: moving or casting this
    module moves both. Not an nn.Linear, which would allocate a matrix only to drop it.
    """

    def __init__(self, n_vocab: int, width: int, bias: bool, tied_to: Any):
        super().__init__()
        self.tied = tied_to is not None
        self.weight = tied_to.weight if self.tied else nn.Parameter(torch.empty(n_vocab, width))
        self.bias = nn.Parameter(torch.empty(n_vocab)) if bias else None
        self.capped = False

    def extra_repr(self) -> str:
        """Describe the head as torch describes linear layers, and whether its matrix is tied."""
        n_vocab, width = self.weight.shape
        bias = self.bias is not None
        return f"in_features={width}, out_features={n_vocab}, bias={bias}, tied={self.tied}"

    def product(self, x):
        """Return the logits of states before any cap."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x):
        logits = self.product(x)
        if self.capped:
            logits = logits / CAP
            logits = torch.tanh(logits)
            logits = logits * CAP
        return logits


class ProjectedLMHead(LMHead):
    """An LM head that first projects the states to d_emb, the width of a factorised embedding."""

    def __init__(self, a, token: Any):
        super().__init__(padded(a), a.d_emb, a.head_bias, token if a.tied else None)
        self.projection = nn.Linear(a.d_model, a.d_emb, bias=False)

    def forward(self, x):
        return super().forward(self.projection(x))


def make_head(a, token: Any, width: int) -> LMHead:
    """Build the architecture's head for hidden states of `width`, tied to `token` or not."""
    return LMHead(padded(a), width, a.head_bias, token if a.tied else None)
