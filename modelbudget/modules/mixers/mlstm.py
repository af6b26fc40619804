"""mLSTM, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.norm import HeadNorm

CAP = 15.0
"""Largest argument of input and forget gate (Beck et al. 2025, xLSTM 7B, §3.2)."""


class MLSTM(KeepsStates):
    """States (batch, length, d_model) to states of the same shape."""

    follows_run = True

    def __init__(self, a):
        super().__init__()
        self.n_head, self.d_key, self.d_value = a.n_mlstm_head, a.d_mlstm_key, a.d_mlstm_value
        key, value = self.n_head * self.d_key, self.n_head * self.d_value
        self.query = nn.Linear(a.d_model, key, bias=False)
        self.key = nn.Linear(a.d_model, key, bias=False)
        self.value = nn.Linear(a.d_model, value, bias=False)
        self.input_gate = nn.Linear(a.d_model, self.n_head)
        self.forget_gate = nn.Linear(a.d_model, self.n_head)
        self.gate = nn.Linear(a.d_model, value, bias=False)
        self.norm = HeadNorm(self.n_head * self.d_value, bias=False)
        self.output = nn.Linear(value, a.d_model, bias=False)
        self.shapes = [  # matrix, normaliser and stabiliser of each head
            (self.n_head, self.d_key, self.d_value), (self.n_head, self.d_key), (self.n_head,)
        ]  # fmt: skip

    def forward(self, x):
        query, key, value = (
            projection(x).unflatten(-1, (self.n_head, -1))
            for projection in (self.query, self.key, self.value)
        )
        write, keep = (capped(gate(x)) for gate in (self.input_gate, self.forget_gate))
        state = self.states(x)
        y, state = scan(query * self.d_key**-0.5, key, value, write, F.logsigmoid(keep), state)
        self.keep(*state)
        return self.output(self.gate(x).sigmoid() * self.norm(y))


def capped(x):
    """Return numbers between −15 and 15."""
    return CAP * torch.tanh(x / CAP)


def scan(query, key, value, write, keep, state):
    """Beck et al. 2024, eq. 19 to 27, with the stabiliser m of eq. 15 to 17.

    query, key: (batch, length, n_head, d_key); value: (…, d_value); write, keep: logarithms of both
    gates, (batch, length, n_head). Returns the shape of value, and the last state.
    """
    matrix, normaliser, m = state
    outputs = []
    each = (tensor.unbind(1) for tensor in (query, key, value, write, keep))
    for q, k, v, i, f in zip(*each, strict=True):
        largest = torch.maximum(f + m, i)
        kept, written = torch.exp(f + m - largest), torch.exp(i - largest)
        k = written.unsqueeze(-1) * k
        matrix = kept[..., None, None] * matrix + k.unsqueeze(-1) * v.unsqueeze(-2)
        normaliser = kept.unsqueeze(-1) * normaliser + k
        m = largest
        read = torch.einsum("bhk,bhkv->bhv", q, matrix.to(q.dtype))
        size = (q * normaliser).sum(-1).abs()
        outputs.append(read / torch.maximum(size, torch.exp(-m)).unsqueeze(-1).to(q.dtype))
    return torch.stack(outputs, 1), (matrix, normaliser, m)


make = MLSTM
