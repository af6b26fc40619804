"""Low-rank changes of stacked experts and of their router, as PEFT's `ParamWrapper` has them.

Source: peft 0.21.2, tuners/lora/layer.py; torch/nn/utils/parametrize.py.
"""

from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

SCALING = 2.0
"""lora_alpha / rank; any but 1 takes the same memory."""


class StackChange:
    """A change of a weight (…, d_out, d_in), while its part computes."""

    def __init__(self, part: Any, down: nn.Parameter, up: nn.Parameter):
        self.part, self.down, self.up = part, down, up
        self.terms: tuple = ()
        self.sum: torch.Tensor | None = None

    def begin(self) -> None:
        """Compute the sum once for nothing, as torch does to check a parametrization."""
        self.terms = self._terms()
        self._sum()

    def read(self) -> torch.Tensor:
        if self.sum is None:
            self.sum = self._sum()
        return self.sum

    def end(self) -> None:
        self.terms, self.sum = (), None

    def _terms(self) -> tuple:
        weight = self.part.weight
        if weight.dim() == 2:
            return (((self.up @ self.down) * SCALING).to(weight.dtype),)
        n = len(weight)
        down = self.down.reshape(n, -1, self.down.shape[-1])
        up = self.up.reshape(len(self.up), -1, n).permute(2, 0, 1)
        return up.to(weight.dtype), down.to(weight.dtype)

    def _sum(self) -> torch.Tensor:
        if self.part.weight.dim() == 2:
            return self.part.weight + self.terms[0]
        return torch.baddbmm(self.part.weight, *self.terms, alpha=SCALING)


@contextmanager
def changed(*parts: Any):
    """Add changes to the weights of some parts while they compute."""
    changes = [part.change for part in parts if getattr(part, "change", None) is not None]
    for change in changes:
        change.begin()
    try:
        yield
    finally:
        for change in changes:
            change.end()
