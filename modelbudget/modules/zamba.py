"""Zamba and Zamba2: Mamba in every layer, shared transformer blocks before some."""

from itertools import cycle, islice

from torch import nn

from modelbudget.modules.embedding import padded
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.norm import make_norm
from modelbudget.modules.shared_block import BlockUse, SharedBlock


class ZambaLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape.

    The mixer reads the sum of states and shared block, whose output is in no residual sum.
    """

    def __init__(self, a, mixer: nn.Module, uses_block: bool):
        super().__init__()
        self.norm = make_norm(a)
        self.mixer = mixer
        self.use = BlockUse(a) if uses_block else None

    def forward(self, x, embedded, block: SharedBlock | None):
        y = x if self.use is None else x + self.use(x, embedded, block)
        return x + self.mixer(self.norm(y))


class ZambaModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a, make_mixer):
        super().__init__()
        uses = [name == "hybrid" for name in islice(cycle(a.mixers.split()), a.n_layer)]
        self.embedding = nn.ModuleDict({"token": nn.Embedding(padded(a), a.d_model)})
        self.block = nn.ModuleList(SharedBlock(a) for _ in range(min(a.n_shared_block, sum(uses))))
        self.layer = nn.ModuleList(ZambaLayer(a, make_mixer(a), use) for use in uses)
        self.norm = nn.ModuleDict({"final": make_norm(a)})
        self.head = make_head(a, self.embedding["token"], a.d_model)

    def forward(self, tokens):
        x = embedded = self.embedding["token"](tokens)
        blocks = cycle(self.block)
        for layer in self.layer:
            x = layer(x, embedded, None if layer.use is None else next(blocks))
        return self.head(self.norm["final"](x))
