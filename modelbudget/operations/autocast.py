"""Casts of arguments to the dtype that torch.autocast wants (aten/src/ATen/autocast_mode.h)."""

from __future__ import annotations

from typing import Any

from modelbudget.operations.tape import Tensor


class Autocast:
    """Autocast while a forward pass runs: casts of weights are kept, all others are not.

    A forward pass has one, and so has each checkpointed layer that runs again.
    """

    def __init__(self, dtype: str):
        self.dtype = dtype
        self.is_inside = False
        """Whether a composite operation, whose arguments have been cast, runs."""
        self.weights: dict[int, Tensor] = {}

    def cast(self, x: Any, dtype: str) -> Any:

        if not isinstance(x, Tensor) or not x.dtype.startswith(("float", "bfloat")):
            return x
        is_weight = bool(x.name) and x.node is not None
        if not is_weight or dtype == "float32":
            return x.to(dtype)
        if id(x) not in self.weights:
            self.weights[id(x)] = x.to(dtype)
        return self.weights[id(x)]
