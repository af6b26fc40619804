"""Decoders whose layers read embeddings of their own."""

from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsKeys
from modelbudget.modules.embedding import TokenEmbedding
from modelbudget.modules.feed_forward.mlp import MLP, activation
from modelbudget.modules.feed_forward.moe import MoE, Router
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import causal
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention, heads_of

NORMS = ("attention", "attention_output", "mlp", "mlp_output")
OF_BRANCHES = ("mlp_branch", "moe", "moe_branch")


class QueryAttention(nn.Module):
    """Attention of states (batch, length, d_model) to keys and values of another layer."""

    def __init__(self, a, d_head: int, window: int):
        super().__init__()
        self.d_head, self.window = d_head, window
        width = a.n_head * d_head
        self.query = nn.Linear(a.d_model, width, bias=a.query_bias)
        self.query_norm = head_norm(a, d_head)
        self.core = ScaledDotProductAttention()
        self.output = nn.Linear(width, a.d_model, bias=a.output_bias)

    def forward(self, x, keys_values):
        """Return the output, and the keys and values with the position of their first token."""
        k, v, start = keys_values
        q = heads_of(self.query(x), -1, self.d_head, self.query_norm)
        q = rotate(q, self.d_head, start)
        hides = 0 < self.window < x.shape[1]
        bias = causal(x.shape[1], x, self.window) if hides else None
        result = self.core(q, k, v, bias).transpose(1, 2).flatten(2)
        return self.output(result), keys_values


class OwnAttention(KeepsKeys, QueryAttention):
    """Attention with keys and values of its own; values are normalised without a scale."""

    def __init__(self, a, d_head: int, window: int):
        super().__init__(a, d_head, window)
        self.n_kv_head = a.n_kv_head if window else a.n_full_kv_head or a.n_kv_head
        width, has_value = self.n_kv_head * d_head, window or not a.values_are_keys
        self.key = nn.Linear(a.d_model, width, bias=a.key_bias)
        self.value = nn.Linear(a.d_model, width, bias=a.value_bias) if has_value else None
        self.key_norm = head_norm(a, d_head)
        self.normalises = a.qk_norm != "none"

    def forward(self, x, _):
        """Return the output, and the keys and values of the same states."""
        return super().forward(x, self.keys_values(x))

    def keys_values(self, x):
        start = self.cache.length if self.cache else 0
        key = self.key(x)
        v = heads_of(key if self.value is None else self.value(x), self.n_kv_head)
        k = rotate(heads_of(key, self.n_kv_head, norm=self.key_norm), self.d_head, start)
        if self.normalises:
            v = F.rms_norm(v, v.shape[-1:])
        if self.cache:
            k, v = self.cache.append(k, v)
        return k, v, start


def head_norm(a, d_head: int) -> nn.Module | None:
    """Build the norm of queries or keys, with one scale for all heads."""
    return None if a.qk_norm == "none" else make_norm(a, d_head, a.qk_norm_bias)


class AltUp(nn.Module):
    """Prediction and correction of residual streams (n_stream, batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        n = a.n_stream
        self.n_stream = n
        self.scale = nn.Parameter(torch.empty(a.d_model))
        self.correction = nn.Linear(n, n, bias=False)
        self.prediction = nn.Linear(n, n * n, bias=False)
        self.modalities = nn.Linear(a.d_model, n, bias=False)
        self.norm = make_norm(a)
        self.width = a.d_model

    def select(self, x):
        return torch.tanh(self.modalities(self.norm(x) / self.width))

    def forward(self, streams):
        """Predict all streams from all."""
        coefficients = self.prediction(self.select(streams[0]))
        coefficients = coefficients.unflatten(2, (self.n_stream, self.n_stream)).transpose(2, 3)
        predicted = torch.matmul(streams.permute(1, 2, 3, 0), coefficients)
        return predicted.permute(3, 0, 1, 2) + streams

    def correct(self, predicted, computed):
        """Correct all streams by what a layer computed of the first."""
        coefficients = self.correction(self.select(computed)) + 1
        innovation = (computed - predicted[0]).unsqueeze(0)
        return predicted + innovation * coefficients.permute(2, 0, 1).unsqueeze(-1)


class Laurel(nn.Module):
    """A low-rank product of states (batch, length, d_model), normalised and added to them."""

    def __init__(self, a):
        super().__init__()
        self.down = nn.Linear(a.d_model, a.d_laurel, bias=False)
        self.up = nn.Linear(a.d_laurel, a.d_model, bias=False)
        self.norm = make_norm(a)

    def forward(self, x):
        return x + self.norm(self.up(self.down(x)))


class PerLayer(nn.Module):
    """What a layer makes of its embedding (batch, length, d_per_layer) and its states."""

    def __init__(self, a):
        super().__init__()
        self.gate = nn.Linear(a.d_model, a.d_per_layer, bias=False)
        self.up = nn.Linear(a.d_per_layer, a.d_model, bias=False)
        self.norm = make_norm(a)
        self.activation = activation(a.activation)

    def forward(self, x, embedded):
        return self.norm(self.up(self.activation(self.gate(x)) * embedded))


class NormalisedRouter(Router):
    """Normalised tokens to weights with a sum of 1, times a learned number of each expert."""

    def __init__(self, a):
        super().__init__(a)
        self.scale = nn.Parameter(torch.empty(a.d_model))
        self.expert_scale = nn.Parameter(torch.empty(a.n_expert))

    def forward(self, tokens, normalised: bool = False):
        scaled = F.rms_norm(tokens, tokens.shape[-1:]) * self.scale
        weights, chosen = super().forward(scaled, normalised)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.expert_scale[chosen], chosen


class PerLayerInputLayer(nn.Module):
    """Residual streams (n_stream, batch, length, d_model) to streams of the same shape."""

    def __init__(self, a, mixer: str, shares: bool):
        super().__init__()
        window = a.window if mixer == "sliding_attention" else 0
        d_head = a.d_head if window else a.d_full_head or a.d_head
        self.attention = (QueryAttention if shares else OwnAttention)(a, d_head, window)
        self.mlp = MLP(a, (1 + a.wide_mlp * shares) * a.d_ff)
        names = NORMS + OF_BRANCHES * (a.n_expert > 0)
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        self.moe = MoE(a, NormalisedRouter(a)) if a.n_expert else None
        self.altup = AltUp(a) if a.n_stream > 1 else None
        self.laurel = Laurel(a) if a.d_laurel else None
        self.per_layer = PerLayer(a) if a.d_per_layer else None

    def forward(self, streams, embedded, keys_values):
        predicted = self.altup(streams) if self.altup else streams
        x = predicted[0]
        normed = self.norm["attention"](x)
        attended, keys_values = self.attention(normed, keys_values)
        x = x + self.norm["attention_output"](attended)
        if self.laurel:
            x = (x + self.laurel(normed)) * 0.5**0.5
        x = x + self.norm["mlp_output"](self.feed_forward(x))
        if not self.altup:
            x = x + self.per_layer(x, embedded) if self.per_layer else x
            return x.unsqueeze(0), keys_values
        corrected = self.altup.correct(predicted, x)
        if self.per_layer:
            more = self.per_layer(corrected[0] * self.altup.scale, embedded)
            corrected = torch.cat((corrected[:1], corrected[1:] + more))
        return corrected, keys_values

    def feed_forward(self, x):
        """Return the MLP's result, and where there are experts its sum with theirs, normalised."""
        y = self.mlp(self.norm["mlp"](x))
        if self.moe is None:
            return y
        y = self.norm["mlp_branch"](y)
        return y + self.norm["moe_branch"](self.moe(self.norm["moe"](x), x))


class PerLayerEmbedding(TokenEmbedding):
    """Tokens to states, and to the embeddings (batch, length, n_layer, d_per_layer) of layers."""

    def __init__(self, a):
        super().__init__(a)
        self.n_layer, width = a.n_layer, a.n_layer * a.d_per_layer
        self.per_layer = nn.ModuleDict()
        if a.d_per_layer:
            self.per_layer["token"] = nn.Embedding(a.n_vocab_per_layer, width)
            self.per_layer["projection"] = nn.Linear(a.d_model, width, bias=False)
            self.per_layer["norm"] = make_norm(a, a.d_per_layer)

    def of_layers(self, tokens, x):
        """Return the embedding that each layer reads, or None for each."""
        if not self.per_layer:
            return [None] * self.n_layer
        projected = self.per_layer["projection"](x).unflatten(2, (self.n_layer, -1))
        table = self.per_layer["token"]
        tokens_of_table = torch.where(tokens < table.num_embeddings, tokens, 0)
        embedded = table(tokens_of_table).unflatten(2, (self.n_layer, -1))
        return ((self.per_layer["norm"](projected) + embedded) * 0.5**0.5).unbind(2)


class Streams(nn.Module):
    """Token embedding to residual streams, and streams to what the head reads."""

    def __init__(self, a):
        super().__init__()

        def projections() -> nn.ModuleList:
            more = range(a.n_stream - 1)
            return nn.ModuleList(nn.Linear(a.d_model, a.d_model, bias=False) for _ in more)

        self.expand, self.merge = projections(), projections()

    def begin(self, x):
        """Return streams of the magnitude of the token embedding."""
        return torch.stack((x, *(like(projection(x), x) for projection in self.expand)))

    def end(self, streams):
        """Return the mean of the streams' projections."""
        first, *more = streams
        projected = (
            like(projection(x), first) for projection, x in zip(self.merge, more, strict=True)
        )
        return torch.stack((first, *projected)).mean(0)


def like(x, reference):
    """Return vectors with the magnitude of others."""
    wanted, present = (y.square().mean(-1, keepdim=True) for y in (reference, x))
    return x * wanted.sqrt() / present.clamp(min=1e-5).sqrt()


class PerLayerInputModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = PerLayerEmbedding(a)
        self.altup = Streams(a)
        n_with_keys = a.n_layer - a.n_kv_shared_layer
        self.mixers = a.mixers.split()
        self.layer = nn.ModuleList(
            PerLayerInputLayer(a, mixer, i >= n_with_keys)
            for i, mixer in zip(range(a.n_layer), cycle(self.mixers), strict=False)
        )
        self.norm = nn.ModuleDict({"final": make_norm(a)})
        self.head = make_head(a, self.embedding.token, a.d_model)
        self.n_with_keys = n_with_keys

    def forward(self, tokens):
        x = self.embedding(tokens)
        embedded, streams = self.embedding.of_layers(tokens, x), self.altup.begin(x)
        attended = {}
        for i, (layer, mixer) in enumerate(zip(self.layer, cycle(self.mixers), strict=False)):
            shared = attended[mixer] if i >= self.n_with_keys else None
            streams, attended[mixer] = layer(streams, embedded[i], shared)
        return self.head(self.norm["final"](self.altup.end(streams)))
