"""Mixture of attention heads: queries and output projections of experts."""

import torch
from torch import nn

from modelbudget.modules.cache import KeepsKeys
from modelbudget.modules.feed_forward.moe import ExpertLinear, loads_of
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention, heads_of


class LargestLogits(nn.Linear):
    """Tokens (n, d_model) to weights and numbers of their experts, both (n, chosen).

    Weights are a softmax of the largest logits alone (Shen et al. 2024, eq. 2).
    """

    def __init__(self, d_model: int, n_expert: int, n_chosen: int):
        super().__init__(d_model, n_expert, bias=False)
        self.n_chosen = n_chosen

    def forward(self, tokens):
        logits = super().forward(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest, chosen = logits.topk(self.n_chosen, dim=-1)
        return largest.softmax(-1).to(tokens.dtype), chosen


class MixtureOfAttentionHeads(KeepsKeys):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.n_expert, self.n_chosen = a.n_query_expert, a.n_query_expert_per_token
        self.n_kv_head, self.d_head = a.n_kv_head, a.d_head
        inner = a.n_kv_head * a.d_head
        self.bias = nn.Parameter(torch.empty(a.d_model))
        self.router = LargestLogits(a.d_model, self.n_expert, self.n_chosen)
        self.query = ExpertLinear(self.n_expert, a.d_model, inner, bias=False)
        self.key_value = nn.Linear(a.d_model, 2 * inner, bias=False)
        self.output = ExpertLinear(self.n_expert, inner, a.d_model, bias=False)
        self.core = ScaledDotProductAttention()
        self.d_rotary = a.d_head if a.position == "rotary" else 0

    def forward(self, x):
        batch, length, _ = x.shape
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens)
        order = chosen.flatten().argsort()  # (token, choice) pairs, by expert
        owner = order // self.n_chosen
        loads = loads_of(chosen, self.n_expert)
        q = self.in_order_of_tokens(self.query(tokens[owner], loads), order)
        q = heads_of(q.view(batch, length, -1), -1, self.d_head)
        k, v = (heads_of(y, -1, self.d_head) for y in self.key_value(x).chunk(2, dim=-1))
        if self.d_rotary:
            start = self.cache.length if self.cache else 0
            q, k = (rotate(y, self.d_rotary, start) for y in (q, k))
        if self.cache:
            k, v = self.cache.append(k, v)
        k, v = (y.repeat(1, self.n_chosen, 1, 1) for y in (k, v))
        result = self.core(q, k, v).transpose(1, 2)
        result = result.flatten(2).unflatten(2, (self.n_chosen, -1))
        outputs = self.output(result.flatten(0, 2)[order], loads)
        weighted = outputs * weights.flatten()[order].unsqueeze(1)
        y = torch.zeros_like(tokens).index_add(0, owner, weighted)
        return y.view_as(x) + self.bias

    def in_order_of_tokens(self, rows, order):
        return torch.zeros_like(rows).index_add(0, order, rows)


make = MixtureOfAttentionHeads
