"""The composable decoder."""

from collections.abc import Iterator
from itertools import chain, cycle, islice, repeat
from typing import cast

import torch
from torch import nn

from modelbudget.modules.embedding import Embedding
from modelbudget.modules.layer import Layer
from modelbudget.modules.lm_head import ProjectedLMHead, make_head
from modelbudget.modules.multi_token_prediction import MultiTokenLayer
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import masks_of_sequences
from modelbudget.modules.replicate import twins


class DecoderModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary with padding)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = Embedding(a)
        self.dropout = nn.Dropout(0.0)
        self.holds_embeddings = self.makes_masks = False
        self.mixers = a.mixers.split()
        windows = {"attention": 0, "nope_attention": 0, "sliding_attention": a.window}
        self.windows = {name: windows[name] for name in self.mixers if name in windows}
        mlps = chain(repeat("mlp", a.n_dense_layer), cycle(a.mlps.split()))
        pairs = islice(zip(cycle(self.mixers), mlps, strict=False), a.n_layer)
        self.layer = twins(pairs, lambda pair: Layer(a, *pair))
        ahead = repeat((self.mixers[-1], a.mlps.split()[-1]), a.n_mtp_layer)
        self.mtp = twins(ahead, lambda pair: MultiTokenLayer(a, *pair))
        names = ["embedding"] * a.embedding_norm + ["final"] * a.final_norm
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        token = self.embedding.token
        self.head = ProjectedLMHead(a, token) if a.d_emb else make_head(a, token, a.d_model)

    def forward(self, tokens):
        return self.head(self.states(tokens))

    def states(self, tokens):
        """Return the states (batch, length, d_model) that the head reads."""
        x, *_live = self.stream(tokens)  # live until the states are there
        return self.normed(x)

    def logits_ahead(self, tokens) -> Iterator[torch.Tensor]:
        """Yield the logits of the next token, and of the tokens that follow it.

        At the end of a text, tokens from its beginning are read in place of those ahead.
        """
        x, mask, rotation, _live = self.stream(tokens)
        yield self.head(self.normed(x))
        for n, layer in enumerate(cast(Iterator[MultiTokenLayer], iter(self.mtp)), 1):
            x = layer(x, self.embedding(tokens.roll(-n, 1)), mask(self.mixers[-1]), rotation)
            yield self.head(layer.final(x))

    def normed(self, x):
        return self.norm["final"](x) if "final" in self.norm else x

    def stream(self, tokens) -> tuple:
        """Return what the last layer returns, and what else is live.

        That is each mixer's mask as a function, the tables of RoPE, and embeddings that are held.
        """
        embeddings = [] if self.holds_embeddings else None
        x = self.dropout(self.embedding(tokens, None if embeddings is None else embeddings.extend))
        if "embedding" in self.norm:
            x = self.norm["embedding"](x)
        bias, rotation = self.embedding.bias(x), self.embedding.rotation(x, tokens.shape[1])
        masks = {}
        if self.makes_masks:
            cache = self.embedding.cache
            n_before = cache.length - tokens.shape[1] if cache else 0
            masks = masks_of_sequences({*self.windows.values()}, x, n_before)

        def mask(mixer: str):
            return masks.get(self.windows.get(mixer, -1), bias)

        for layer, mixer in zip(self.layer, cycle(self.mixers), strict=False):
            x = layer(x, mask(mixer), rotation)
        return x, mask, rotation, embeddings
