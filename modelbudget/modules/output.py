"""The head over states of any width."""

import torch
from torch import nn
from torch.nn import functional as F


class Output(nn.Module):
    """States (batch, length, width) to logits (batch, length, n_vocab).

    Tied means the very Parameter of `token`, the token embedding, and not a copy.
    """

    def __init__(self, a, token: nn.Embedding | None, width: int):
        super().__init__()
        self.tied = a.tied
        self.weight = token.weight if a.tied else nn.Parameter(torch.empty(a.n_vocab, width))
        self.bias = nn.Parameter(torch.empty(a.n_vocab)) if a.head_bias else None

    def reset_parameters(self):
        if not self.tied:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
