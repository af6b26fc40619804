"""Differential attention."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsKeys
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention, heads_of

INITIAL = 0.8
"""What is added to the learned factor; the code of the paper lets it grow with the layer."""


class DifferentialAttention(KeepsKeys):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        d_query, d_key = a.n_head * a.d_head, a.n_kv_head * a.d_head
        self.factor = nn.Parameter(torch.empty(4, a.d_head))
        self.query = nn.Linear(a.d_model, d_query, bias=a.query_bias)
        self.key = nn.Linear(a.d_model, d_key, bias=a.key_bias)
        self.value = nn.Linear(a.d_model, d_key, bias=a.value_bias)
        self.output = nn.Linear(d_query, a.d_model, bias=a.output_bias)
        self.core = ScaledDotProductAttention()
        self.n_kv_head, self.d_head = a.n_kv_head, a.d_head
        self.d_rotary = (a.d_rotary or a.d_head) if a.position == "rotary" else 0

    def forward(self, x):
        q, k, v = (
            heads_of(project(x), -1, self.d_head) for project in (self.query, self.key, self.value)
        )
        if self.d_rotary:
            start = self.cache.length if self.cache else 0
            q, k = (rotate(heads, self.d_rotary, start) for heads in (q, k))
        if self.cache:
            k, v = self.cache.append(k, v)
        halves = (half.repeat(1, 2, 1, 1) for half in v.chunk(2, dim=1))
        both = torch.cat([self.core(q, k, half) for half in halves], dim=-1)
        first, second = both.chunk(2, dim=1)
        plus, minus = (pair.prod(0).sum().exp() for pair in self.factor.chunk(2))
        result = first - (plus - minus + INITIAL) * second
        result = (1 - INITIAL) * F.rms_norm(result, result.shape[-1:])
        return self.output(result.transpose(1, 2).flatten(2))


make = DifferentialAttention
