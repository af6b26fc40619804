"""Language models whose layers are one after the other."""

from collections.abc import Iterable

from torch import nn


class LanguageModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab): embedding, layers, norm, head."""

    def __init__(
        self,
        embedding: nn.Module,
        layers: Iterable[nn.Module],
        head: nn.Module,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.embedding = embedding
        self.layer = nn.ModuleList(layers)
        self.norm = None if norm is None else nn.ModuleDict({"final": norm})
        self.head = head

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layer:
            x = layer(x)
        return self.head(x if self.norm is None else self.norm["final"](x))
