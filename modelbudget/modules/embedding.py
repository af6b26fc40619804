"""Token and position embeddings, and the head, tied or not."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import Cache
from modelbudget.modules.position import DistanceBuckets, alibi, causal, sinusoids


class TokenEmbedding(nn.Module):
    """Tokens (batch, length) to states (batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        self.token = nn.Embedding(padded(a), a.d_model)

    def forward(self, tokens):
        return self.token(tokens)


class Embedding(nn.Module):
    """Tokens (batch, length) to states (batch, length, d_model).

    Token embedding, factorised or not, and position embedding where the architecture adds one here.
    """

    def __init__(self, a):
        super().__init__()
        self.token = nn.Embedding(padded(a), a.d_emb or a.d_model)
        self.projection = nn.Linear(a.d_emb, a.d_model, bias=False) if a.d_emb else None
        self.kind, self.n_head = a.position, a.n_head
        if a.position == "learned":
            self.position = nn.Embedding(a.n_ctx + a.position_offset, a.d_model)
        elif a.position == "buckets":
            self.position = DistanceBuckets(a.n_bucket, a.n_head)
        self.offset = a.position_offset
        self.cache = None

    def make_cache(self, batch: int, length: int, like) -> Cache:
        """Return a counter of the tokens so far: the position of the next token."""
        return Cache([], batch, length, like)

    def forward(self, tokens):
        x = self.token(tokens)
        if self.projection is not None:
            x = self.projection(x)
        length = tokens.shape[1]
        start = self.cache.advance(length) if self.cache else 0
        if self.kind == "learned":
            places = torch.arange(start, start + length, device=tokens.device)
            x = x + self.position(self.offset + places)
        elif self.kind == "sinusoidal":
            x = x + sinusoids(length, x.shape[2], x, start)
        return x

    def bias(self, x):
        """Return the bias of all layers' attention scores: (n_head, length, length), or None."""
        length = x.shape[1]
        if self.kind == "alibi":
            return alibi(self.n_head, length, x) + causal(length, x)
        if self.kind == "buckets":
            return self.position(length) + causal(length, x)
        return None


class Head(nn.Module):
    """States (batch, length, d_model) to logits (batch, length, vocabulary with padding).

    Tied means the very Parameter of the token embedding, not a copy: moving or casting this
    module moves both. Not an nn.Linear, which would allocate a matrix only to drop it. A
    factorised head first projects the states to d_emb.
    """

    def __init__(self, a, token: nn.Embedding, d_emb: int = 0):
        super().__init__()
        self.projection = nn.Linear(a.d_model, d_emb, bias=False) if d_emb else None
        self.weight = token.weight if a.tied else nn.Parameter(torch.empty(token.weight.shape))
        self.bias = nn.Parameter(torch.empty(padded(a))) if a.head_bias else None
        self.tied = a.tied

    def extra_repr(self) -> str:
        """As torch prints linear layers, and whether the matrix is tied."""
        words, width = self.weight.shape
        bias = self.bias is not None
        return f"in_features={width}, out_features={words}, bias={bias}, tied={self.tied}"

    def reset_parameters(self):
        if not self.tied:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        if self.projection is not None:
            x = self.projection(x)
        return F.linear(x, self.weight, self.bias)


def padded(a) -> int:
    """Rows of the token embedding: the vocabulary, padded to a multiple."""
    return math.ceil(a.n_vocab / a.vocab_multiple) * a.vocab_multiple
