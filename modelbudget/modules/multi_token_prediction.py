"""A layer that predicts one token further ahead."""

import torch
from torch import nn

from modelbudget.modules.layer import Layer
from modelbudget.modules.norm import make_norm


class MultiTokenLayer(nn.Module):
    """States (batch, length, d_model) and the embedding of the token ahead, to states."""

    only_trained = True

    def __init__(self, a, mixer: str, mlp: str):
        super().__init__()
        self.norm = nn.ModuleDict({name: make_norm(a) for name in ("embedding", "states", "final")})
        self.combine = nn.Linear(2 * a.d_model, a.d_model, bias=False)
        self.layer = Layer(a, mixer, mlp)

    def final(self, x):
        """Return the states that the head reads."""
        return self.norm["final"](x)

    def forward(self, x, embedded, *positions):
        both = torch.cat((self.norm["embedding"](embedded), self.norm["states"](x)), dim=-1)
        return self.layer(self.combine(both), *positions)
