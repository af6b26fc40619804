"""Transformer blocks that several layers share, and what each use of one adds."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsKeys
from modelbudget.modules.feed_forward.mlp import activation
from modelbudget.modules.norm import make_norm
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import heads_of


class SharedBlock(nn.Module):
    """The parameters of attention over 2 · d_model channels, of a gated MLP, and of their norms."""

    def __init__(self, a):
        super().__init__()
        joined, heads = 2 * a.d_model, a.n_head * a.d_head
        self.attention = nn.ModuleDict(
            {name: nn.Linear(joined, heads, bias=False) for name in ("query", "key", "value")}
        )
        self.attention["output"] = nn.Linear(heads, a.d_model, bias=False)
        self.mlp = AdaptedMLP(a)
        self.norm = nn.ModuleDict({"attention": make_norm(a, joined), "mlp": make_norm(a)})


class AdaptedMLP(nn.Module):
    """States (batch, length, d_model) to the same shape; an adapter adds to gate and up."""

    def __init__(self, a):
        super().__init__()
        self.gate = nn.Linear(a.d_model, a.d_ff, bias=False)
        self.up = nn.Linear(a.d_model, a.d_ff, bias=False)
        self.down = nn.Linear(a.d_ff, a.d_model, bias=False)
        self.activation = activation(a.activation)

    def forward(self, x, adapter=None):
        gate, up = self.gate(x), self.up(x)
        if adapter is not None:
            for_gate, for_up = adapter(x).chunk(2, dim=-1)
            gate, up = gate + for_gate, up + for_up
        return self.down(self.activation(gate) * up)


class BlockUse(KeepsKeys):
    """One use of a shared block: its adapters, its keys and values, and a matrix behind it.

    States (batch, length, d_model) and token embeddings of that shape to states of that shape.
    """

    def __init__(self, a):
        super().__init__()
        joined, heads = 2 * a.d_model, a.n_head * a.d_head
        for name in ("query", "key", "value"):
            has_adapter = a.attention_adapter
            self.add_module(name, adapter(joined, a.d_adapter, heads) if has_adapter else None)
        self.mlp = adapter(a.d_model, a.d_adapter, 2 * a.d_ff) if a.d_adapter else None
        self.linear = nn.Linear(a.d_model, a.d_model, bias=False)
        self.n_head = self.n_kv_head = a.n_head
        self.d_head, self.rotary = a.d_head, a.position == "rotary"
        # As if the head had half of the channels, those of the states (Zamba's code).
        self.scale = (a.d_head / 2) ** -0.5

    def forward(self, x, embedded, block: SharedBlock):
        x = block.norm["attention"](torch.cat((x, embedded), dim=-1))
        q, k, v = (self.projected(name, x, block) for name in ("query", "key", "value"))
        if self.rotary:
            start = self.cache.length if self.cache else 0
            q, k = rotate(q, self.d_head, start), rotate(k, self.d_head, start)
        if self.cache:
            k, v = self.cache.append(k, v)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, scale=self.scale)
        x = block.attention["output"](x.transpose(1, 2).flatten(2))
        return self.linear(block.mlp(block.norm["mlp"](x), self.mlp))

    def projected(self, name: str, x, block: SharedBlock):
        """(batch, length, 2 · d_model) to (batch, n_head, length, d_head)."""
        y, low_rank = block.attention[name](x), getattr(self, name)
        y = y if low_rank is None else y + low_rank(x)
        return heads_of(y, self.n_head)


def adapter(d_in: int, rank: int, d_out: int) -> nn.Sequential:
    """Two matrices in a row, of a low rank."""
    return nn.Sequential(nn.Linear(d_in, rank, bias=False), nn.Linear(rank, d_out, bias=False))
