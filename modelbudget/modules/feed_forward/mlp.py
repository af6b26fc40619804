"""The MLP of a layer."""

from torch import nn
from torch.nn import functional as F

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class MLP(nn.Module):
    """States (…, d_model) to states (…, d_model) through d_ff hidden units, `d_ff` (a.d_ff)."""

    def __init__(self, a, d_ff: int | None = None):
        super().__init__()
        d_ff = a.d_ff if d_ff is None else d_ff
        self.gate = nn.Linear(a.d_model, d_ff, bias=a.up_bias) if a.gated else None
        self.up = nn.Linear(a.d_model, d_ff, bias=a.up_bias)
        self.down = nn.Linear(d_ff, a.d_model, bias=a.down_bias)
        self.activation = ACTIVATIONS[a.activation]

    def forward(self, x):
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


def make(a) -> MLP:
    """Build the MLP with a.d_ff hidden units."""
    return MLP(a)
