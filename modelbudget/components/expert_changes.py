"""Low-rank changes of stacked experts and of their router, as PEFT's `ParamWrapper` makes them.

The sum of weight and product is a matrix, or a stack, of its own: products read it, and autograd
saves it. Source: peft 0.21.2, tuners/lora/layer.py; torch/nn/utils/parametrize.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from modelbudget.operations.elementwise import add, mul, to
from modelbudget.operations.products import baddbmm, mm
from modelbudget.operations.tape import Tensor
from modelbudget.operations.views import permute, view


class Change:
    """A change of a weight (…, d_out, d_in), while its part computes."""

    def __init__(self, weight: Tensor, down: Tensor, up: Tensor, rank):
        self.weight, self.down, self.up, self.rank = weight, down, up, rank
        self.terms: tuple[Tensor, ...] = ()
        self.sum: Tensor | None = None

    def begin(self) -> None:
        """Compute the sum once for nothing: torch checks the shape that a parametrization has."""
        self.terms = self._terms()
        self._sum()

    def read(self) -> Tensor:
        """Return the sum, which is kept until the part has computed (`parametrize.cached`)."""
        if self.sum is None:
            self.sum = self._sum()
        return self.sum

    def end(self) -> None:
        self.terms, self.sum = (), None

    def _terms(self) -> tuple[Tensor, ...]:
        dtype, shape = self.weight.dtype, self.weight.shape
        if len(shape) == 2:
            return (to(mul(mm(self.up, self.down), 2.0), dtype),)
        n, d_out, d_in = shape
        down = view(self.down, (n, self.rank, d_in))
        up = permute(view(self.up, (d_out, self.rank, n)), [2, 0, 1])
        return to(up, dtype), to(down, dtype)

    def _sum(self) -> Tensor:
        if len(self.weight.shape) == 2:
            return add(self.weight, *self.terms)
        return baddbmm(self.weight, *self.terms, alpha=2.0)


@contextmanager
def changed(*changes: Change | None) -> Iterator[None]:
    """Add changes to weights while a part computes, the outermost wrapper's first."""
    known = [change for change in changes if change is not None]
    for change in known:
        change.begin()
    try:
        yield
    finally:
        for change in known:
            change.end()
