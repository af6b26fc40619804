"""Low-rank adapters (Hu et al. 2022, §4.1), as PEFT computes them: around a linear layer.

The base is frozen. What autograd saves then, and which gradients it makes, follows from which
tensors need one; no part of a model knows of adapters.
"""

from collections.abc import Callable

from modelbudget.architecture.fields import Run
from modelbudget.architecture.run_adapter import ALL_LINEAR
from modelbudget.operations.elementwise import add, dropout, mul, to
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import linear


class LowRankAdapter:
    """Two matrices of rank r, added to the linear layers that a run names."""

    def __init__(self, r: Run):
        self.targets, self.rank = r.adapter_targets.split(), r.adapter_rank
        self.dtype = r.dtype if r.adapter_dtype == "dtype" else "float32"
        self.has_dropout, self.backend = r.adapter_dropout, r.backend

    def around(self, name: str, base: Callable, d_in, d_out) -> Callable:
        """Return the forward function of a layer, with an adapter if it is a target."""
        if name not in self.targets and ALL_LINEAR not in self.targets:
            return base
        down = make_part("lora_A", self._matrix, d_in, self.rank)
        up = make_part("lora_B", self._matrix, self.rank, d_out)
        drop = make_part("lora_dropout", lambda: self._dropout)

        def forward(x):
            result = base(x)
            dtype = result.dtype
            x = to(x, self.dtype)
            result = add(result, mul(up(down(drop(x))), 2.0))
            return to(result, dtype)

        return forward

    def _matrix(self, d_in, d_out) -> Callable:
        weight = parameter("weight", d_out, d_in, is_adapter=True, dtype=self.dtype)
        return lambda x: linear(x, weight)

    def _dropout(self, x):
        return dropout(x, self.has_dropout, self.backend)
