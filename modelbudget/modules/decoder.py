"""The composable decoder."""

from itertools import chain, cycle, islice, repeat

from torch import nn

from modelbudget.modules.embedding import Embedding
from modelbudget.modules.layer import Layer
from modelbudget.modules.lm_head import ProjectedLMHead, make_head
from modelbudget.modules.norm import make_norm
from modelbudget.modules.replicate import twins


class DecoderModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary with padding)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = Embedding(a)
        self.dropout = nn.Dropout(0.0)
        mixers = cycle(a.mixers.split())
        mlps = chain(repeat("mlp", a.n_dense_layer), cycle(a.mlps.split()))
        kinds = islice(zip(mixers, mlps, strict=False), a.n_layer)
        self.layer = twins(kinds, lambda kind: Layer(a, *kind))
        names = ["embedding"] * a.embedding_norm + ["final"] * a.final_norm
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        token = self.embedding.token
        self.head = ProjectedLMHead(a, token) if a.d_emb else make_head(a, token, a.d_model)

    def forward(self, tokens):
        return self.head(self.states(tokens))

    def states(self, tokens):
        """Return the states (batch, length, d_model) that the head reads."""
        x = self.dropout(self.embedding(tokens))
        if "embedding" in self.norm:
            x = self.norm["embedding"](x)
        bias, rotation = self.embedding.bias(x), self.embedding.rotation(x)
        for layer in self.layer:
            x = layer(x, bias, rotation)
        return self.norm["final"](x) if "final" in self.norm else x
