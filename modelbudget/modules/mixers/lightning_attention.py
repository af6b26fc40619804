"""Lightning attention, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates


class LightningAttention(KeepsStates):
    """States (batch, length, d_model) to states of the same shape.

    Each head has a state of d_head × d_head, with the decay that the first layer of MiniMax-01 has;
    that of later layers, nearer to 1, changes no size.
    """

    def __init__(self, a):
        super().__init__()
        self.n_head, self.d_head = a.n_head, a.d_head
        inner = a.n_head * a.d_head
        self.query_key_value = nn.Linear(a.d_model, 3 * inner, bias=False)
        self.gate = nn.Linear(a.d_model, inner, bias=False)
        self.norm = nn.RMSNorm(inner)
        self.output = nn.Linear(inner, a.d_model, bias=False)
        self.shapes = [(a.n_head, a.d_head, a.d_head)]

    def decay(self, like):
        """Return exp(−2^(−8 h / n_head)) for the heads h = 1, 2, … (Press et al. 2022, §3)."""
        heads = torch.arange(1, self.n_head + 1, device=like.device, dtype=like.dtype)
        return torch.exp(-torch.exp2(-8 * heads / self.n_head))[:, None, None]

    def forward(self, x):
        mixed = F.silu(self.query_key_value(x)).unflatten(2, (self.n_head, -1))
        query, key, value = mixed.split(self.d_head, dim=-1)
        (state,) = self.states(x)
        decay, outputs = self.decay(x), []
        for q, k, v in zip(query.unbind(1), key.unbind(1), value.unbind(1), strict=True):
            state = decay * state + k.unsqueeze(-1) * v.unsqueeze(-2)
            outputs.append((q.unsqueeze(-2) @ state).squeeze(-2))
        self.keep(state)
        y = self.norm(torch.stack(outputs, 1).flatten(2))
        return self.output(self.gate(x).sigmoid() * y)


make = LightningAttention
