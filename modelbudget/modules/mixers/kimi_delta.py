"""Kimi Delta Attention, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates, exact
from modelbudget.modules.mixers.gated_deltanet import Convolution, normalised
from modelbudget.modules.scaled_dot_product import heads_of


class KimiDelta(KeepsStates):
    """States (batch, length, d_model) to states of the same shape.

    Each of n_linear_head heads has a state of d_linear_key × d_linear_key, whose rows decay each at
    a rate of its own. All but the projections is computed in at least single precision.
    """

    exact_state = True

    def __init__(self, a):
        super().__init__()
        self.n_head, self.d_key = a.n_linear_head, a.d_linear_key
        inner = self.n_head * self.d_key
        self.rate = nn.Parameter(torch.empty(self.n_head))
        self.step = nn.Parameter(torch.empty(inner))
        self.query = nn.Linear(a.d_model, inner, bias=False)
        self.key = nn.Linear(a.d_model, inner, bias=False)
        self.value = nn.Linear(a.d_model, inner, bias=False)
        self.convolution = Convolution(3 * inner, a.d_linear_convolution)
        self.decay_down = nn.Linear(a.d_model, self.d_key, bias=False)
        self.decay_up = nn.Linear(self.d_key, inner, bias=False)
        self.beta = nn.Linear(a.d_model, self.n_head, bias=False)
        self.gate_down = nn.Linear(a.d_model, self.d_key, bias=False)
        self.gate_up = nn.Linear(self.d_key, inner, bias=False)
        self.norm = nn.RMSNorm(self.d_key)
        self.output = nn.Linear(inner, a.d_model, bias=False)
        self.shapes = [(self.n_head, self.d_key, self.d_key)]

    def forward(self, x):
        mixed = torch.cat((self.query(x), self.key(x), self.value(x)), dim=-1)
        mixed = F.silu(self.convolution(mixed, 0)).to(exact(x))
        query, key, value = mixed.chunk(3, dim=1)
        query = normalised(query, self.n_head) * self.d_key**-0.5
        key = normalised(key, self.n_head)
        value = value.unflatten(1, (self.n_head, -1)).transpose(2, 3)
        step = (self.decay_up(self.decay_down(x)) + self.step).to(exact(x))
        step = heads_of(step, self.n_head)
        decay = (-self.rate.to(exact(x)).exp()[:, None, None] * F.softplus(step)).exp()
        beta = self.beta(x).sigmoid().to(exact(x)).transpose(1, 2)
        (state,) = self.states(query)
        y, state = scan(query, key, value, beta, decay, state)
        self.keep(state)
        gate = self.gate_up(self.gate_down(x)).unflatten(2, (self.n_head, -1))
        return self.output((self.norm(y.to(x.dtype)) * gate.sigmoid()).flatten(2))


def scan(query, key, value, beta, decay, state):
    """S ← (1 − β k kᵀ) diag(decay) S + β k vᵀ;  y = qᵀ S (Kimi Team 2025, eq. 1).

    query, key, value, decay: (batch, n_head, length, d); beta: (batch, n_head, length); state:
    (batch, n_head, d, d). Returns (batch, length, n_head, d), and the last state.
    """
    outputs = []
    each = (tensor.unbind(2) for tensor in (query, key, value, beta, decay))
    for q, k, v, b, kept in zip(*each, strict=True):
        state = kept.unsqueeze(-1) * state
        recalled = (k.unsqueeze(-2) @ state).squeeze(-2)
        state = state + k.unsqueeze(-1) * ((v - recalled) * b.unsqueeze(-1)).unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1), state


make = KimiDelta
