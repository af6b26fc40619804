"""Mamba-2's mixer, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.causal_convolution import CausalConvolution
from modelbudget.modules.mamba_block import read_by_token


class StateSpaceDualMixer(KeepsStates):
    """States (batch, length, d_model) to states of the same shape."""

    follows_run = True

    def __init__(self, a):
        super().__init__()
        d_shared = a.n_group * a.d_state
        d_convolved = a.d_inner + 2 * d_shared
        self.input = nn.Linear(a.d_model, a.d_inner + d_convolved + a.n_head, bias=False)
        self.convolution = CausalConvolution(d_convolved, a.d_convolution)
        self.step = nn.Parameter(torch.empty(a.n_head))
        self.decay = nn.Parameter(torch.empty(a.n_head))
        self.skip = nn.Parameter(torch.empty(a.n_head))
        self.norm: nn.Module = GroupedNorm(a.n_group, a.d_inner)
        self.output = nn.Linear(a.d_inner, a.d_model, bias=False)
        self.n_head, self.n_group = a.n_head, a.n_group
        self.from_input = [a.d_inner, d_convolved, a.n_head]
        self.from_convolution = [a.d_inner, d_shared, d_shared]
        self.shapes = [(a.n_head, a.d_head, a.d_state)]

    def forward(self, x):
        gate, x, step = self.input(x).split(self.from_input, -1)
        x, write, read = F.silu(self.convolution(x)).split(self.from_convolution, -1)
        x = x.unflatten(-1, (self.n_head, -1))
        write, read = (self.by_head(y) for y in (write, read))
        (state,) = self.states(x)
        y, state = scan(x, F.softplus(step + self.step), -self.decay.exp(), write, read, state)
        self.keep(state)
        y = (y + self.skip.unsqueeze(-1) * x).flatten(2)
        return self.output(self.norm(y * F.silu(gate)))

    def by_head(self, x):
        """(batch, length, n_group · d_state) to (batch, length, n_head, d_state)."""
        groups = x.unflatten(-1, (self.n_group, -1))
        return groups.repeat_interleave(self.n_head // self.n_group, dim=2)


class GroupedNorm(nn.RMSNorm):
    """RMSNorm within each group of channels: (…, width) to the same shape (Dao & Gu 2024, §8.1)."""

    def __init__(self, n_group: int, width: int):
        super().__init__(width)
        self.n_group = n_group

    def forward(self, x):
        groups = x.unflatten(-1, (self.n_group, -1))
        return F.rms_norm(groups, groups.shape[-1:]).flatten(-2) * self.weight


def scan(x, step, decay, write, read, state):
    """h ← exp(step · decay) h + step · x ⊗ write;  y = h · read (Dao & Gu 2024, eq. 1 and §2.4).

    x: (batch, length, n_head, d_head); step: (batch, length, n_head); decay: (n_head,); write,
    read: (batch, length, n_head, d_state); state: (batch, n_head, d_head, d_state). Returns the
    shape of x, and the last state.
    """
    kept = torch.exp(step * decay)[..., None, None]
    written = (step.unsqueeze(-1) * x).unsqueeze(-1) * write.unsqueeze(3)
    return read_by_token("bhds,bhs->bhd", kept, written, read, state)
