"""The MLP of a layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.feed_forward.fused_gate import fused_gate
from modelbudget.modules.joined import joined_linear, put_gate_up
from modelbudget.modules.norm import make_norm


def activation(name: str) -> Callable:
    """Return the activation function, which is found by its name at each call."""
    if name == "relu2":
        return lambda x: F.relu(x).square()
    if name == "xielu":
        return XIELU()
    return lambda x: getattr(F, name)(x)


class XIELU(nn.Module):
    """A quadratic for x > 0, an exponential below, each with a learned number.

    Huang & Schlag 2024 (arXiv 2411.13010): βx + αₚ x² where x > 0, and βx + αₙ (eˣ − 1 − x) where
    not, with αₚ > 0 and αₙ > β.
    """

    BETA = 0.5

    def __init__(self):
        super().__init__()
        self.positive = nn.Parameter(torch.empty(1))
        self.negative = nn.Parameter(torch.empty(1))

    def reset_parameters(self):
        for parameter, alpha in ((self.positive, 0.8), (self.negative, 0.8 - self.BETA)):
            nn.init.constant_(parameter, math.log(math.expm1(alpha)))

    def forward(self, x):
        positive = F.softplus(self.positive)
        negative = self.BETA + F.softplus(self.negative)
        below = (torch.expm1(x.clamp(max=0)) - x) * negative
        return torch.where(x > 0, positive * x * x, below) + self.BETA * x


class MLP(nn.Module):
    """States (…, d_model) to states (…, d_model) through d_ff hidden units, `d_ff` (a.d_ff)."""

    def __init__(self, a, d_ff: int | None = None):
        super().__init__()
        d_ff = a.d_ff if d_ff is None else d_ff
        self.gate = nn.Linear(a.d_model, d_ff, bias=a.up_bias) if a.gated else None
        self.up = nn.Linear(a.d_model, d_ff, bias=a.up_bias)
        self.down = nn.Linear(d_ff, a.d_model, bias=a.down_bias)
        self.activation = activation(a.activation)
        self.activation_name = a.activation
        has_norm = getattr(a, "inner_norm", False)
        self.norm = make_norm(a, d_ff) if has_norm else nn.Identity()
        self.gate_up: Any = None
        self.fuses_gate = False

    def pack(self, packed: bool) -> None:
        """Make one matrix of those of gate and up, once and for all if `packed`."""
        if packed and self.gate_up is None and self.gate is not None:
            put_gate_up(self, joined_linear([self.gate, self.up]))

    def forward(self, x):
        if self.gate_up is not None and self.fuses_gate:
            return self.down(self.norm(fused_gate(self.gate_up(x), self.activation_name)))
        if self.gate_up is not None:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(self.norm(self.activation(gate) * up))
        if self.gate is None:
            return self.down(self.norm(self.activation(self.up(x))))
        return self.down(self.norm(self.activation(self.gate(x)) * self.up(x)))


make = MLP
