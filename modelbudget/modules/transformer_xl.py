"""Transformer-XL."""

import torch
from torch import nn

from modelbudget.modules.adaptive_softmax import AdaptiveInput, AdaptiveSoftmax
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import sinusoids
from modelbudget.modules.relative_attention import RelativeAttention


class TransformerXLLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.attention = RelativeAttention(a)
        self.mlp = MLP(a)
        self.norm = nn.ModuleDict({n: make_norm(a) for n in ("attention", "mlp")})

    def forward(self, x, memory, waves, bias):
        x = self.norm["attention"](x + self.attention(x, memory, waves, bias))
        return self.norm["mlp"](x + self.mlp(x))


class TransformerXLModel(nn.Module):
    """Tokens (batch, length) to logarithms of probabilities (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = AdaptiveInput(a)
        self.bias = nn.ParameterDict(
            {name: torch.empty(a.n_head * a.d_head) for name in ("content", "distance")}
        )
        self.layer = nn.ModuleList(TransformerXLLayer(a) for _ in range(a.n_layer))
        self.head = AdaptiveSoftmax(a, self.embedding)
        # Rows are small, as in the first Transformer, which scales them likewise.
        self.scale_in = a.d_model**0.5

    def forward(self, tokens):
        return self.segment(tokens, None)[0]

    def segment(self, tokens, memory):
        """Log-probabilities, and each layer's input for the next segment to look back on.

        `memory`: what the call before returned, n_layer tensors (batch, m, d_model), or None.
        """
        x = self.embedding(tokens) * self.scale_in
        if memory is None:
            memory = [x[:, :0]] * len(self.layer)
        waves = sinusoids(memory[0].shape[1] + tokens.shape[1], x.shape[2], x)
        seen = []
        for layer, before in zip(self.layer, memory, strict=True):
            seen.append(torch.cat((before, x), dim=1).detach())
            x = layer(x, before, waves, self.bias)
        return self.head(x), seen
