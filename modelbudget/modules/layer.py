"""A transformer layer: attention and MLP with their norms, in sequence or in parallel."""

from torch import nn

from modelbudget.modules.attention import Attention
from modelbudget.modules.mlp import MLP
from modelbudget.modules.norm import make_norm


class Layer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.attention = Attention(a)
        self.mlp = MLP(a)
        self.parallel = a.parallel
        norms = ("shared",) if a.parallel else ("attention", "mlp")
        self.norm = nn.ModuleDict({name: make_norm(a) for name in norms})

    def forward(self, x):
        if self.parallel:
            y = self.norm["shared"](x)
            return x + self.attention(y) + self.mlp(y)
        x = x + self.attention(self.norm["attention"](x))
        return x + self.mlp(self.norm["mlp"](x))
