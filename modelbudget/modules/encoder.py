"""Encoders with a masked-language-model head, and decoders with their layers."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modelbudget.modules.embedding import padded
from modelbudget.modules.feed_forward.mlp import MLP, activation
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.multi_head import CachedMultiHead, MultiHead
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import causal


class EncoderEmbedding(nn.Module):
    """Tokens and segments (batch, length) to states (batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        width = a.d_emb or a.d_model
        rows = a.n_ctx + a.position_offset
        self.token = nn.Embedding(padded(a), width)
        self.position = nn.Embedding(rows, width) if a.position == "learned" else None
        self.segment = nn.Embedding(a.n_segment, width) if a.n_segment else None
        self.norm = make_norm(a, width) if a.embedding_norm else None
        self.projection = nn.Linear(width, a.d_model) if a.d_emb else None
        self.offset = a.position_offset

    def forward(self, tokens, segments=None, start: int = 0):
        """`start`: tokens before these, of which caches have keys and values."""
        x = self.token(tokens)
        if self.position is not None:
            places = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            x = x + self.position(places + self.offset)
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(tokens) if segments is None else segments)
        x = x if self.norm is None else self.norm(x)
        return x if self.projection is None else self.projection(x)


class EncoderLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a, number: int):
        super().__init__()
        make = CachedMultiHead if a.causal else MultiHead
        window = a.window if number % a.global_every else 0
        self.attention: Any = make(a, rotary=a.position == "rotary", window=window)
        self.mlp = MLP(a)
        has_norm = a.first_norm or number > 0
        self.norm = nn.ModuleDict({"attention": make_norm(a)} if has_norm else {})
        self.norm["mlp"] = make_norm(a)
        self.norm_first = a.norm_placement == "pre"
        self.causal, self.recompute = a.causal, False

    def forward(self, x, mask):
        if self.recompute:
            return checkpoint(self.compute, x, mask, use_reentrant=False)
        return self.compute(x, mask)

    def compute(self, x, mask):
        if not self.norm_first:
            x = self.norm["attention"](x + self.attention(x, None, self.causal, mask))
            return self.norm["mlp"](x + self.mlp(x))
        y = self.norm["attention"](x) if "attention" in self.norm else x
        x = x + self.attention(y, None, self.causal, mask)
        return x + self.mlp(self.norm["mlp"](x))


class Transform(nn.Module):
    """Map states (batch, length, d_model) to the input of the head."""

    def __init__(self, a):
        super().__init__()
        width = a.d_emb or a.d_model
        self.dense = nn.Linear(a.d_model, width, bias=a.transform_bias)
        self.norm = make_norm(a, width)
        self.activation = activation(a.activation)

    def forward(self, x):
        return self.norm(self.activation(self.dense(x)))


class EncoderModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab), or without a head to states.

    `relation` reads the pooler and the next-sentence classes, which `forward` does not use.
    """

    def __init__(self, a):
        super().__init__()
        self.embedding = EncoderEmbedding(a)
        self.layer = nn.ModuleList(EncoderLayer(a, i) for i in range(a.n_distinct))
        self.norm = nn.ModuleDict({"final": make_norm(a)} if a.final_norm else {})
        self.pooler: Any = nn.Linear(a.d_model, a.d_model) if a.pooler else None
        self.next_sentence = nn.Linear(a.d_model, 2) if a.next_sentence else None
        self.transform = Transform(a) if a.transform else None
        width = a.d_emb or a.d_model
        self.head = make_head(a, self.embedding.token, width) if a.lm_head else None
        self.n_times = a.n_layer // a.n_distinct
        self.window, self.global_every, self.causal = a.window, a.global_every, a.causal

    def forward(self, tokens, segments=None):
        x = self.encode(tokens, segments)
        if self.head is None:
            return x
        return self.head(x if self.transform is None else self.transform(x))

    def relation(self, tokens, segments=None):
        """Compute the outputs read from the first token's state.

        The two logits of next-sentence prediction (batch, 2), or the pooled state (batch, d_model)
        where there are no classes.
        """
        pooled = torch.tanh(self.pooler(self.encode(tokens, segments)[:, 0]))
        return pooled if self.next_sentence is None else self.next_sentence(pooled)

    def encode(self, tokens, segments=None):
        """States after the last layer, (batch, length, d_model)."""
        first: Any = self.layer[0]
        cache = first.attention.cache if self.causal else None
        x = self.embedding(tokens, segments, cache.length if cache else 0)
        local = self.local_mask(x)
        passes = [layer for layer in self.layer for _ in range(self.n_times)]
        for i, layer in enumerate(passes):
            x = layer(x, None if i % self.global_every == 0 else local)
        for norm in self.norm.values():
            x = norm(x)
        return x

    def local_mask(self, x):
        """(length, length), true where two tokens are at most half a window apart.

        Of causal layers what is added to scores, if a token is not in the window of another.
        """
        length = x.shape[1]
        if self.causal:
            return causal(length, x, self.window) if 0 < self.window < length else None
        if not self.window:
            return None
        places = torch.arange(length, device=x.device)
        return (places[:, None] - places).abs() <= self.window // 2
