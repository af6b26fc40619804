"""Encoder–decoders."""

from itertools import cycle, islice
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from modelbudget.modules.embedding import padded
from modelbudget.modules.feed_forward import feed_forward
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.multi_head import CachedMultiHead, MultiHead
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import bucket, sinusoids


class StackLayer(nn.Module):
    """States (batch, length, d_model) to the same shape.

    With `cross`, a layer of the decoder: causal, with cross-attention to the encoder's states.
    """

    def __init__(self, a, cross: bool, mlp: str):
        super().__init__()
        scaled = a.position != "buckets"
        make = CachedMultiHead if cross else MultiHead
        self.attention: Any = make(a, scaled=scaled)
        # Without an encoder it has nothing to keep.
        make = CachedMultiHead if a.n_encoder_layer else MultiHead
        self.cross: Any = make(a, scaled=scaled) if cross else None
        self.last = mlp
        self.add_module(mlp, feed_forward()[mlp].make(a))
        names = ("attention", "cross", mlp) if cross else ("attention", mlp)
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        self.norm_first = a.norm_placement == "pre"
        self.recompute = False

    def forward(self, x, mask, memory=None):
        if self.recompute:
            return checkpoint(self.compute, x, mask, memory, use_reentrant=False)
        return self.compute(x, mask, memory)

    def compute(self, x, mask, memory):
        causal = self.cross is not None and mask is None
        x = self.add("attention", x, lambda y: self.attention(y, causal=causal, mask=mask))
        if memory is not None:
            x = self.add("cross", x, lambda y: self.cross(y, memory))
        return self.add(self.last, x, self.get_submodule(self.last))

    def add(self, name: str, x, part):
        """x plus what `part` makes of it, with the norm before the part or after the sum."""
        norm = self.norm[name]
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))


class Stack(nn.Module):
    """Embeddings (batch, length, d_model) to states of the same shape."""

    def __init__(self, a, n_layer: int, cross: bool):
        super().__init__()
        self.position: Any = None
        if a.position == "learned":
            self.position = nn.Embedding(a.n_ctx + a.position_offset, a.d_model)
        elif a.position == "buckets":
            self.position = nn.Embedding(a.n_bucket, a.n_head)
        mlps = islice(cycle(a.mlps.split()), n_layer)
        self.layer = nn.ModuleList(StackLayer(a, cross, mlp) for mlp in mlps)
        norms = {"embedding": a.embedding_norm, "final": a.final_norm}
        self.norm = nn.ModuleDict({n: make_norm(a) for n, wanted in norms.items() if wanted})
        self.cross, self.encoding, self.offset = cross, a.position, a.position_offset
        self.n_bucket, self.max_distance = a.n_bucket, a.max_distance

    def forward(self, x, memory=None, start: int = 0):
        """`start`: tokens before those of x, of which a cache has keys and values."""
        places = torch.arange(start + x.shape[1], device=x.device)
        if self.encoding == "learned":
            x = x + self.position(places[start:] + self.offset)
        elif self.encoding == "sinusoidal":
            x = x + sinusoids(x.shape[1], x.shape[2], x, start)
        if "embedding" in self.norm:
            x = self.norm["embedding"](x)
        mask = self.distance_bias(places, start) if self.encoding == "buckets" else None
        for layer in self.layer:
            x = layer(x, mask, memory)
        return self.norm["final"](x) if "final" in self.norm else x

    def distance_bias(self, places, start: int):
        """Return T5's relative position bias of this stack's scores, (n_head, queries, keys)."""
        distance = places - places[start:, None]
        buckets = bucket(distance, self.n_bucket, self.max_distance, both_ways=not self.cross)
        bias = self.position(buckets).permute(2, 0, 1)
        return bias.masked_fill(distance > 0, float("-inf")) if self.cross else bias


class EncoderDecoderModel(nn.Module):
    """Source and target tokens to logits (batch, target length, n_vocab).

    Source (batch, length), target (batch, target length). Without a target the source itself is
    decoded. Without an encoder, cross-attention is skipped.
    """

    def __init__(self, a):
        super().__init__()
        self.embedding = nn.ModuleDict({"token": nn.Embedding(padded(a), a.d_model)})
        encoder = Stack(a, a.n_encoder_layer, cross=False) if a.n_encoder_layer else None
        self.encoder: Any = encoder
        self.decoder = Stack(a, a.n_decoder_layer, cross=True)
        self.head = make_head(a, self.embedding["token"], a.d_model)
        # Vaswani et al. 2017, §3.4: rows of the shared matrix are small, positions are not.
        self.scale_in = a.d_model**0.5 if a.position == "sinusoidal" else 1.0
        self.kept_in_dtype = a.kept_by_class()
        # T5 scales on the way out instead, and only where the matrix is shared.
        self.scale_out = a.d_model**-0.5 if a.position == "buckets" and a.tied else 1.0

    def forward(self, source, target=None):
        return self.decode(source if target is None else target, self.encode(source))

    def encode(self, source):
        """Return the encoder's states of a source (batch, length, d_model)."""
        token = self.embedding["token"]
        return self.encoder(token(source) * self.scale_in) if self.encoder else None

    def decode(self, target, memory, start: int = 0):
        """Return logits of a target; with caches, of its tokens from number `start` on."""
        x = self.decoder(self.embedding["token"](target) * self.scale_in, memory, start)
        return self.head(x * self.scale_out)
