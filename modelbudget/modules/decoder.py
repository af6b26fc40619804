"""The composable decoder."""

from torch import nn

from modelbudget.modules.embedding import Embedding, Head
from modelbudget.modules.layer import Layer
from modelbudget.modules.norm import make_norm


class DecoderModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = Embedding(a)
        self.layer = nn.ModuleList(Layer(a) for _ in range(a.n_layer))
        self.norm = nn.ModuleDict({"final": make_norm(a)} if a.final_norm else {})
        self.head = Head(a, self.embedding.token)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layer:
            x = layer(x)
        for norm in self.norm.values():
            x = norm(x)
        return self.head(x)
