"""Griffin's recurrent block, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.causal_convolution import CausalConvolution

SHARPNESS = 8
"""c in a = exp(−c · softplus(decay) · r) (De et al. 2024, §2.4 and appendix A)."""


class RecurrentBlock(KeepsStates):
    """States (batch, length, d_model) to states of the same shape (De et al. 2024, §2.3)."""

    follows_run = True

    def __init__(self, a):
        super().__init__()
        width = a.n_lru_block * a.d_lru_block
        self.gate = nn.Linear(a.d_model, width)
        self.input = nn.Linear(a.d_model, width)
        self.convolution = CausalConvolution(width, a.d_lru_convolution)
        self.input_gate = BlockDiagonal(a.n_lru_block, a.d_lru_block)
        self.recurrence_gate = BlockDiagonal(a.n_lru_block, a.d_lru_block)
        self.decay = nn.Parameter(torch.empty(width))
        self.output = nn.Linear(width, a.d_model)
        self.shapes = [(width,)]

    def forward(self, x):
        gate = F.gelu(self.gate(x), approximate="tanh")
        x = self.convolution(self.input(x)).contiguous()
        rate = -SHARPNESS * F.softplus(self.decay)
        kept = torch.exp(rate * torch.sigmoid(self.recurrence_gate(x)))
        written = torch.sqrt(1 - kept.square()) * (torch.sigmoid(self.input_gate(x)) * x)
        (state,) = self.states(x)
        y, state = scan(kept, written, state)
        self.keep(state)
        return self.output(y * gate)


class BlockDiagonal(nn.Module):
    """(batch, length, n_block · size) to the same shape: a matrix for each block, and a bias."""

    def __init__(self, n_block: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_block, size, size))
        self.bias = nn.Parameter(torch.empty(n_block, size))

    def forward(self, x):
        blocks = x.view(-1, *self.bias.shape).transpose(0, 1)
        gates = torch.baddbmm(self.bias.unsqueeze(1), blocks, self.weight)
        return gates.transpose(0, 1).reshape(x.shape)


def scan(kept, written, state):
    """h ← a · h + written (De et al. 2024, eq. 4).

    kept (a), written: (batch, length, d_lru); state: (batch, d_lru). Returns all states in the
    shape and dtype of `written`, and the last.
    """
    states = []
    for keep, new in zip(kept.unbind(1), written.unbind(1), strict=True):
        state = keep * state + new
        states.append(state.to(new.dtype))
    return torch.stack(states, dim=1), state


make = RecurrentBlock
