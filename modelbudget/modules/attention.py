"""Causal self-attention with grouped key–value heads and rotary positions."""

import torch
from torch import nn
from torch.nn import functional as F

ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.n_head, self.n_kv_head, self.d_head = a.n_head, a.n_kv_head, a.d_head
        # n_head · d_head need not be d_model: PaLM 540B has 48 · 256 = 12,288 of 18,432.
        d_query, d_key = a.n_head * a.d_head, a.n_kv_head * a.d_head
        self.query = nn.Linear(a.d_model, d_query, bias=a.query_bias)
        self.key = nn.Linear(a.d_model, d_key, bias=a.key_bias)
        self.value = nn.Linear(a.d_model, d_key, bias=a.value_bias)
        self.output = nn.Linear(d_query, a.d_model, bias=a.output_bias)
        self.rotary = getattr(a, "position", None) == "rotary"

    def forward(self, x):
        q = self.split(self.query(x), self.n_head)
        k = self.split(self.key(x), self.n_kv_head)
        v = self.split(self.value(x), self.n_kv_head)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        x = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.n_kv_head != self.n_head
        )
        return self.output(x.transpose(1, 2).flatten(2))

    def split(self, x, n_head: int):
        """(batch, length, n_head · d_head) to (batch, n_head, length, d_head)."""
        return x.unflatten(2, (n_head, self.d_head)).transpose(1, 2)


def rotate(x):
    """Turn pairs of channels by an angle that grows with the position (Su et al. 2021, eq. 34).

    The pairs are channel i and i + d_head/2, as in Llama's published checkpoints.
    """
    length, d_head = x.shape[-2:]
    frequency = ROTARY_BASE ** (-torch.arange(0, d_head, 2, device=x.device) / d_head)
    angle = torch.outer(torch.arange(length, device=x.device), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
