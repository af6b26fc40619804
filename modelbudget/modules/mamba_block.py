"""Mamba's mixer, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.causal_convolution import CausalConvolution

EPSILON = 1e-6


class SelectiveScanMixer(KeepsStates):
    """States (batch, length, d_model) to states of the same shape."""

    follows_run = True

    def __init__(self, a):
        super().__init__()
        self.input = nn.Linear(a.d_model, 2 * a.d_inner, bias=False)
        self.convolution = CausalConvolution(a.d_inner, a.d_convolution)
        self.selection = nn.Linear(a.d_inner, a.d_step + 2 * a.d_state, bias=False)
        self.step = nn.Linear(a.d_step, a.d_inner)
        self.decay = nn.Parameter(torch.empty(a.d_inner, a.d_state))
        self.skip = nn.Parameter(torch.empty(a.d_inner))
        self.output = nn.Linear(a.d_inner, a.d_model, bias=False)
        self.sizes = [a.d_step, a.d_state, a.d_state]
        self.inner_norm = a.inner_norm
        self.shapes = [(a.d_inner, a.d_state)]

    def forward(self, x):
        x, gate = self.input(x).chunk(2, -1)
        x = F.silu(self.convolution(x))
        (state,) = self.states(x)
        y, state = self.scanned(x, state)
        self.keep(state)
        return self.output((y + self.skip * x) * F.silu(gate))

    def scanned(self, x, state):
        """Return what is read (batch, length, d_inner), and the last state."""
        step, write, read = self.selected(x)
        return scan(x, F.softplus(self.step(step)), -self.decay.exp(), write, read, state)

    def selected(self, x):
        """Return the step (low rank), write and read weights of each token."""
        parts = self.selection(x).split(self.sizes, -1)
        if self.inner_norm:
            return [F.rms_norm(y, y.shape[-1:], eps=EPSILON) for y in parts]
        return parts


def scan(x, step, decay, write, read, state):
    """h ← exp(step · decay) h + step · write · x;  y = read · h (Gu & Dao 2023, eq. 2a and 4).

    x, step: (batch, length, d_inner); decay: (d_inner, d_state); write, read: (batch, length,
    d_state); state: (batch, d_inner, d_state). Returns (batch, length, d_inner) and the last state.
    """
    kept = torch.exp(step.unsqueeze(-1) * decay)  # (batch, length, d_inner, d_state)
    written = (step * x).unsqueeze(-1) * write.unsqueeze(2)
    return read_by_token("bds,bs->bd", kept, written, read, state)


def read_by_token(equation: str, kept, written, read, state):
    """Return what is read of the states of all tokens, by an equation of einsum, and the last."""
    outputs = []
    for keep, new, out in zip(kept.unbind(1), written.unbind(1), read.unbind(1), strict=True):
        state = keep * state + new
        outputs.append(torch.einsum(equation, state.to(out.dtype), out))
    return torch.stack(outputs, dim=1), state
