"""Einsum of two tensors, as torch composes it of views, sums and one batched product.

Source: aten/src/ATen/native/Linear.cpp (`einsum`, `sumproduct_pair`).
"""

from __future__ import annotations

from modelbudget.operations.operation import operation
from modelbudget.operations.products import bmm
from modelbudget.operations.tape import Tensor, product


@operation(autocast="lower")
def einsum(equation: str, x: Tensor, y: Tensor) -> Tensor:
    """Multiply two tensors and sum over the labels that the result lacks.

    A label that is summed has one number in an operand without it, and no products are added there.
    """
    operands, result = equation.split("->")
    of_x, of_y = operands.split(",")
    summed = sorted({*of_x, *of_y} - {*result})
    x, y = (_with_labels(z, of_z, (*result, *summed)) for z, of_z in ((x, of_x), (y, of_y)))
    n, dims = len(result), range(len(result), len(result) + len(summed))
    of_both = [dim for dim in dims if x.shape[dim] != 1 and y.shape[dim] != 1]
    if alone := [dim for dim in dims if dim not in of_both and x.shape[dim] != 1]:
        x = x.sum(alone, keepdim=True)
    if alone := [dim for dim in dims if dim not in of_both and y.shape[dim] != 1]:
        y = y.sum(alone, keepdim=True)
    z = _sum_of_products(x, y, of_both)
    return z.view(z.shape[:n]) if summed else z


def _with_labels(x: Tensor, labels: str, wanted) -> Tensor:
    """Return x with a dimension for each label that is wanted, in their order."""
    for _ in range(len(wanted) - len(labels)):
        x = x.unsqueeze(-1)
    new = iter(range(len(labels), len(wanted)))
    return x.permute([labels.index(w) if w in labels else next(new) for w in wanted])


def _sum_of_products(x: Tensor, y: Tensor, summed: list[int]) -> Tensor:
    """Multiply and sum over dimensions that both have; the sums keep a dimension of one number.

    Dimensions of both and of the result are the batch of the product, those of one its rows or
    columns.
    """
    if not summed:
        return x * y
    kept = [dim for dim in range(len(x.shape)) if dim not in summed]
    batch = [dim for dim in kept if x.shape[dim] != 1 and y.shape[dim] != 1]
    rows = [dim for dim in kept if dim not in batch and x.shape[dim] != 1]
    columns = [dim for dim in kept if dim not in batch and dim not in rows]
    if rows and columns and columns[-1] < rows[0]:  # the result is laid out in order (swap_lo_ro)
        x, y, rows, columns = y, x, columns, rows
    n_batch, n_row, n_summed = (product(x.shape[d] for d in dims) for dims in (batch, rows, summed))
    n_column = product(y.shape[dim] for dim in columns)
    shape = [x.shape[dim] for dim in batch + rows] + [1] * len(summed)
    shape += [y.shape[dim] for dim in columns]
    x = x.permute([*batch, *rows, *summed, *columns]).reshape((n_batch, n_row, n_summed))
    y = y.permute([*batch, *summed, *columns, *rows]).reshape((n_batch, n_summed, n_column))
    order = batch + rows + summed + columns
    z = bmm(x, y).view(shape)
    return z.permute([order.index(dim) for dim in range(len(order))])
