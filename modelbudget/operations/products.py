"""Matrix products: what they save, their gradients, and two FLOPs for a product and a sum.

Source: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp
(`mm_mat1_grad`, `mm_mat2_grad`), aten/src/ATen/native/LinearAlgebra.cpp (`matmul`),
aten/src/ATen/native/Linear.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

from modelbudget.operations.autograd import by_input, factors, finish_node, result_of, start_node
from modelbudget.operations.memory_layout import broadcast, is_contiguous
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Tensor, empty, product
from modelbudget.operations.views import unsafe_view


def _of_left(x: Tensor) -> Callable:
    """Return the gradient of the first factor of a product, laid out as the matrix."""
    n, strides = x.shape[0], x.strides

    def gradient(saved, g):
        return mm(saved[1], g.t()).t() if _is_column_major(n, strides) else mm(g, saved[1].t())

    return gradient


def _of_right(y: Tensor) -> Callable:
    """Return the gradient of the second factor, laid out as the matrix."""
    n, strides = y.shape[0], y.strides

    def gradient(saved, g):
        return mm(g.t(), saved[0]).t() if _is_column_major(n, strides) else mm(saved[0].t(), g)

    return gradient


def _is_column_major(n, strides) -> bool:
    return strides[0] == 1 and strides[1] == n


def _of_first_stack(saved, g: Tensor) -> Tensor:
    return bmm(g, saved[1].transpose(1, 2))


def _of_second_stack(saved, g: Tensor) -> Tensor:
    return bmm(saved[0].transpose(1, 2), g)


@operation(autocast="lower")
def mm(x: Tensor, y: Tensor) -> Tensor:
    """Multiply (n, k) by (k, m). Saves both, each for the gradient of the other."""
    (n, k), m = x.shape, y.shape[1]
    node = start_node("mm", [x, y], factors(x, y))
    (z,) = result_of("mm", lambda: [_multiplied((n, m), k, x.dtype)])
    return finish_node(node, z, by_input({1: _of_right(y), 0: _of_left(x)}))


def _multiplied(shape, n_summed, dtype: str) -> Tensor:
    """Allocate a product, each number of which is a sum of so many products."""
    z = empty(shape, dtype)
    Active.tape.count_flops(2 * n_summed * product(shape))
    return z


@operation(autocast="lower")
def addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Multiply and add a bias to each row; its gradient is summed over the rows."""
    (n, k), m = x.shape, y.shape[1]
    node = start_node("addmm", [bias, x, y], factors(x, y))
    z = _multiplied((n, m), k, x.dtype)
    return finish_node(node, z, by_input({0: lambda _, g: g, 1: _of_left(x), 2: _of_right(y)}))


@operation(autocast="lower")
def bmm(x: Tensor, y: Tensor) -> Tensor:
    """Multiply (batch, n, k) by (batch, k, m)."""
    (batch, n, k), m = x.shape, y.shape[2]
    node = start_node("bmm", [x, y], factors(x, y))
    z = _multiplied((batch, n, m), k, x.dtype)
    return finish_node(node, z, by_input({1: _of_second_stack, 0: _of_first_stack}))


@operation(autocast="lower")
def baddbmm(bias: Tensor, x: Tensor, y: Tensor, alpha: float = 1.0) -> Tensor:
    """Multiply (batch, n, k) by (batch, k, m) and add a bias, which broadcasts to the result.

    `alpha`: a factor of the product, by which gradients are multiplied if it is not 1.
    """
    (batch, n, k), m = x.shape, y.shape[2]
    node = start_node("baddbmm", [bias, x, y], factors(x, y))
    z = _multiplied((batch, n, m), k, x.dtype)

    def multiplied(x):
        return x if alpha == 1 else x * alpha

    gradients = {
        0: lambda _, g: g,
        1: lambda saved, g: multiplied(_of_first_stack(saved, g)),
        2: lambda saved, g: multiplied(_of_second_stack(saved, g)),
    }
    return finish_node(node, z, by_input(gradients))


@operation(autocast="lower")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Multiply over the last two dimensions, as torch composes it of mm or bmm."""
    n_dim, n_dim_of_y = len(x.shape), len(y.shape)
    if n_dim == n_dim_of_y == 2:
        return mm(x, y)
    if n_dim_of_y == 2 and (_counts_as_trained(y) or _folds_without_copy(x)):
        return _folded(x, y)
    if n_dim == 2 and _counts_as_trained(x):
        return _folded(y.transpose(-2, -1), x.t()).transpose(-2, -1).contiguous()
    outer = broadcast(x.shape[:-2], y.shape[:-2])
    n, m = x.shape[n_dim - 2], y.shape[-1]
    x = x.expand((*outer, *x.shape[-2:])).reshape((product(outer), *x.shape[-2:]))
    y = y.expand((*outer, *y.shape[-2:])).reshape((product(outer), *y.shape[-2:]))
    return unsafe_view(bmm(x, y), (*outer, n, m))


def _counts_as_trained(x: Tensor) -> bool:
    """Return what torch's `requires_grad` says: also of a parameter's view made without a graph.

    Source: torch/csrc/autograd/variable.h (`DifferentiableViewMeta::requires_grad`).
    """
    return x.needs_gradient or x.storage.is_of_trained_parameter


def _folded(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply all rows of x, in one matrix, by a matrix."""
    rows = x.reshape((product(x.shape[:-1]), x.shape[-1]))
    return unsafe_view(mm(rows, matrix), (*x.shape[:-1], matrix.shape[-1]))


def _folds_without_copy(x: Tensor) -> bool:
    """Return whether all rows are one matrix (`should_fold`, which minds dimensions of size 1)."""
    return all(x.strides[i] == x.strides[i + 1] * x.shape[i + 1] for i in range(len(x.shape) - 2))


@operation(autocast="lower")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b over the last dimension of x, as torch composes it.

    Saves x, and the weight, which is there anyway. With a bias the view of x is made before the
    transposed weight, without one after: that decides which gradient is added to another first.
    """
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None and len(x.shape) == 2:
        return addmm(bias, x, weight.t())
    if bias is not None and is_contiguous(x):
        rows = x.reshape((product(x.shape[:-1]), x.shape[-1]))
        return addmm(bias, rows, weight.t()).view(shape)
    y = matmul(x, weight.t())
    return y if bias is None else y + bias


@operation
def grouped_mm(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor | None) -> Tensor:
    """Multiply each row by the matrix of its group: (n, d_in) and (groups, d_out, d_in).

    Saves the ends of the groups, and the rows where the matrices are trained, whose gradients are
    of the whole stack of matrices.
    """
    n, (_, d_out, d_in) = x.shape[0], weight.shape
    z = _multiplied((n, d_out), d_in, x.dtype)
    bias_shape = None if bias is None or not bias.needs_gradient else bias.shape
    wants_x, wants_weight, shape, dtype = x.needs_gradient, weight.needs_gradient, x.shape, x.dtype

    def gradients(saved, g):
        _, weight, _ = saved
        Active.tape.count_flops(2 * n * d_in * d_out * (wants_x + wants_weight))
        of_x = empty(shape, dtype) if wants_x else None
        of_weight = empty(weight.shape, weight.dtype) if wants_weight else None
        return of_x, of_weight, None if bias_shape is None else empty(bias_shape, weight.dtype)

    node = start_node("grouped_mm", [x, weight, bias])
    return finish_node(node, z, gradients, [x if wants_weight else None, weight, ends])


@operation
def solve_triangular(system: Tensor, x: Tensor) -> Tensor:
    """Solve for columns. Saves the system and the result, which is laid out column by column."""
    node = start_node("solve_triangular", [system, x], [system])
    shape = x.shape
    y = empty((*shape[:-2], shape[-1], shape[-2]), x.dtype).transpose(-2, -1)
    wants_system, wants_x = system.needs_gradient, x.needs_gradient

    def gradients(saved, g):
        system, y = saved
        of_x = solve_triangular(system.transpose(-2, -1), g)
        if not wants_system:
            return None, of_x
        of_system = -matmul(of_x, y.transpose(-2, -1))
        of_system = empty(of_system.shape, of_system.dtype)  # its lower triangle
        return of_system, (of_x if wants_x else None)

    return finish_node(node, y, gradients, [y])
