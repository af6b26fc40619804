"""A linear layer for each head."""

import torch
from torch import nn


class HeadLinear(nn.Module):
    """(n_head, tokens, d_head) to (n_head, tokens, width): a matrix for each head."""

    def __init__(self, n_head: int, d_head: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_head, d_head, width))

    def forward(self, x):
        return torch.bmm(x, self.weight)
