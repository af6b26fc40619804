"""Collectives of devices that compute one model together: what one of them allocates.

Source: torch/distributed/_functional_collectives.py (results are new tensors; another dimension
than the first needs a copy in the order of the parts), torch/distributed/tensor/_redistribute.py,
torch/distributed/tensor/_api.py (`_FromTorchTensor`, `_ToTorchTensor`: the gradient of a term of a
sum is that of the sum, and that of a tensor which all devices have is summed over them).
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_function, result_of, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import (
    BYTES,
    Active,
    Storage,
    Tensor,
    contiguous_strides,
    empty,
    product,
    view_of,
)


class WholeGradient(Tensor):
    """The gradient of all rows of a matrix that n devices divide; `shape` is of this one's rows."""

    __slots__ = ("n_device",)

    def __init__(self, weight: Tensor, n_device, dtype: str | None = None):
        dtype = dtype or weight.dtype
        n_bytes = n_device * BYTES[dtype] * product(weight.shape)
        super().__init__(weight.shape, weight.strides, dtype, Storage(n_bytes))
        self.n_device = n_device


def cast_of_all_rows(gradient: Tensor, dtype: str) -> Tensor:
    """Cast a gradient, of all rows if it has them."""
    if not isinstance(gradient, WholeGradient):
        return gradient.to(dtype)
    Active.tape.operation = "to"
    return WholeGradient(gradient, gradient.n_device, dtype)


@operation
def all_reduce(x: Tensor) -> Tensor:
    return empty(x.shape, x.dtype)


@operation
def all_gather(x: Tensor, n, dim: int) -> Tensor:
    """Return the parts of n devices one after the other in a dimension."""
    dim, x = dim % len(x.shape), x.contiguous()
    gathered = empty((n * x.shape[0], *x.shape[1:]), x.dtype)
    shape = (*x.shape[:dim], n * x.shape[dim], *x.shape[dim + 1 :])
    if product(x.shape[:dim]) == 1:
        return view_of(gathered, shape, contiguous_strides(shape))
    return empty(shape, x.dtype)


@operation
def reduce_scatter(x: Tensor, n, dim: int) -> Tensor:
    """Return this device's part of the sum over n devices."""
    in_order = None if dim == 0 else empty(x.shape, x.dtype)
    shape = (*x.shape[:dim], x.shape[dim] // n, *x.shape[dim + 1 :])
    (part,) = result_of("reduce_scatter", lambda: [empty(shape, x.dtype)])
    del in_order
    return part


@operation
def part_of(x: Tensor, n, dim: int) -> Tensor:
    """Return a copy of this device's part of what each has; the gradient is gathered."""
    part = empty((*x.shape[:dim], x.shape[dim] // n, *x.shape[dim + 1 :]), x.dtype)
    return _of_function("part_of", part, x, lambda _, g: all_gather(g, n, dim))


def summed(x: Tensor, n, dim: int | None) -> Tensor:
    """Return the sum of the terms of n devices; if a dimension is named, this one's part of it."""
    y = all_reduce(x) if dim is None else reduce_scatter(x, n, dim)
    return _of_function("sum", y, x, lambda _, g: g if dim is None else all_gather(g, n, dim))


def gathered(x: Tensor, n, dim: int | None) -> Tensor:
    """Return what n devices have each a part of, or x itself if each has all; sum its gradient."""
    y = x.detach() if dim is None else all_gather(x, n, dim)

    def gradients(_, g):
        return all_reduce(g) if dim is None else reduce_scatter(g, n, dim)

    return _of_function("gather", y, x, gradients)


def whole(x: Tensor, n, dim: int) -> Tensor:
    """Return what n devices have each a part of; each has the gradient of all, and copies its part.

    `placement_types.py`: `_replicate_to_shard`.
    """
    return _of_function("whole", all_gather(x, n, dim), x, lambda _, g: part_of(g, n, dim))


def same(x: Tensor) -> Tensor:
    """Return x behind a node of its own, through which a divided part reads it."""
    return _of_function("same", x.detach(), x, lambda _, g: g)


def _of_function(name: str, y: Tensor, x: Tensor, gradients) -> Tensor:
    return finish_function(start_node(name, [x]), y, gradients)


def own_rows(gradient: Tensor) -> Tensor:
    """Return a copy of this device's rows of the gradient of a whole matrix; another as it is."""
    return _copied(gradient) if isinstance(gradient, WholeGradient) else gradient


@operation
def _copied(gradient: Tensor) -> Tensor:
    return empty(gradient.shape, gradient.dtype)
