"""Multi-head latent attention (MLA)."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import Cache
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import causal
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention, heads_of


class MLA(nn.Module):
    """States (batch, length, d_model) to states of the same shape.

    A query or key has d_nope channels without RoPE and d_rope with it, unless `position` is none;
    the latter channels of the keys are shared by all heads.
    """

    def __init__(self, a):
        super().__init__()
        self.n_head, self.d_nope, self.d_rope, self.d_value = (
            a.n_head,
            a.d_nope,
            a.d_rope,
            a.d_value,
        )
        self.kv_lora_rank, self.has_rope = a.kv_lora_rank, a.position == "rotary"
        d_query = a.n_head * (a.d_nope + a.d_rope)
        self.compressed = a.q_lora_rank > 0
        if self.compressed:
            self.query_down = nn.Linear(a.d_model, a.q_lora_rank, bias=False)
            self.query_norm = make_norm(a, a.q_lora_rank)
            self.query_up = nn.Linear(a.q_lora_rank, d_query, bias=False)
        else:
            self.query = nn.Linear(a.d_model, d_query, bias=False)
        self.kv_down = nn.Linear(a.d_model, a.kv_lora_rank + a.d_rope, bias=False)
        self.kv_norm = make_norm(a, a.kv_lora_rank)
        self.kv_up = nn.Linear(a.kv_lora_rank, a.n_head * (a.d_nope + a.d_value), bias=False)
        self.core = ScaledDotProductAttention()
        self.cache: Any = None
        self.output = nn.Linear(a.n_head * a.d_value, a.d_model, bias=False)

    def forward(self, x):
        queries = self.query_norm(self.query_down(x)) if self.compressed else x
        q = self.query_up(queries) if self.compressed else self.query(x)
        hidden_scores = self.hidden_scores(x, queries)
        del queries
        q = heads_of(q, self.n_head)
        parts = q.split((self.d_nope, self.d_rope), dim=-1) if self.has_rope else None
        latent, k_rope = self.kv_down(x).split((self.kv_lora_rank, self.d_rope), dim=-1)
        start = self.cache.length if self.cache else 0
        k_rope = k_rope.unsqueeze(1)
        if self.has_rope:
            k_rope = rotate(k_rope, self.d_rope, start)
        if self.cache:
            latent, k_rope = self.cache.append(latent.unsqueeze(1), k_rope)
            latent = latent.squeeze(1)
        k_nope, v = heads_of(self.kv_up(self.kv_norm(latent)), self.n_head).split(
            (self.d_nope, self.d_value), dim=-1
        )
        if parts is not None:
            q_nope, q_rope = parts
            q = torch.cat((q_nope, rotate(q_rope, self.d_rope, start)), dim=-1)
        k = torch.cat((k_nope, k_rope.expand(-1, self.n_head, -1, -1)), dim=-1)
        y = self.core(q, k, v, hidden_scores)
        return self.output(y.transpose(1, 2).flatten(2))

    def hidden_scores(self, x, queries):
        """Return what is added to the scores: nothing, they are causal.

        `queries`: the latent of the queries, or the states.
        """
        return

    def make_cache(self, batch: int, length: int, like) -> Cache:
        """Latents and rotary keys."""
        return Cache([(1, self.kv_lora_rank), (1, self.d_rope)], batch, length, like)


class SparseMLA(MLA):
    """MLA in which a token attends the `n_selected` tokens that its indexer ranks first."""

    def __init__(self, a):
        super().__init__(a)
        self.n_index_head, self.n_selected = a.n_index_head, a.n_selected
        self.index_query = nn.Linear(a.q_lora_rank, a.n_index_head * a.d_index, bias=False)
        self.index_key = nn.Linear(a.d_model, a.d_index, bias=False)
        self.index_norm = nn.LayerNorm(a.d_index)
        self.index_weight = nn.Linear(a.d_model, a.n_index_head, bias=False)

    def hidden_scores(self, x, queries):
        """Return what is added to the scores: −∞ for all tokens that are not selected.

        Training sets the indexer by a loss of its own, so that no gradient flows through it.
        """
        with torch.no_grad():
            q = heads_of(self.index_query(queries), self.n_index_head)
            k = self.index_norm(self.index_key(x)).unsqueeze(1)
            scores = rotate(q, self.d_rope) @ rotate(k, self.d_rope).transpose(-1, -2)
            weights = self.index_weight(x).transpose(1, 2).unsqueeze(-1)
            ranks = (weights * F.relu(scores)).sum(1) + causal(x.shape[1], x)
            chosen = ranks.topk(min(self.n_selected, x.shape[1])).indices
            hidden = torch.full_like(ranks, float("-inf")).scatter(-1, chosen, 0)
        return (hidden + causal(x.shape[1], x)).unsqueeze(1)

    def make_cache(self, batch: int, length: int, like):
        raise ValueError("no cache is known for the keys of an indexer")


def make(a) -> MLA:
    """MLA of all tokens before, or of those that an indexer selects."""
    return SparseMLA(a) if a.n_index_head else MLA(a)
