"""Sums over dimensions, softmax, and what sorts or selects.

Source: tools/autograd/derivatives.yaml, aten/src/ATen/native/SoftMax.cpp.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_node, start_node, with_node
from modelbudget.operations.elementwise import compare
from modelbudget.operations.joining import zeros_and_copy
from modelbudget.operations.memory_layout import empty_like
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Shape, Tensor, empty


def _reduced(shape, dims, keepdim: bool) -> Shape:
    dims = [dim % len(shape) for dim in dims]
    if keepdim:
        return tuple(1 if i in dims else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in dims)


def _expanded(g: Tensor, shape, dims, keepdim: bool) -> Tensor:
    if not keepdim:
        for dim in sorted(dim % len(shape) for dim in dims):
            g = g.unsqueeze(dim)
    return g.expand(shape)


@operation
def sum_over(x: Tensor, dims, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    """Sum over dimensions. The gradient is a view that repeats that of the sums."""
    shape = x.shape
    y = empty(_reduced(shape, dims, keepdim), dtype or x.dtype)
    return with_node("sum", y, [x], lambda _, g: _expanded(g, shape, dims, keepdim))


@operation
def mean(x: Tensor, dims, keepdim: bool = False) -> Tensor:
    shape = x.shape
    y = empty(_reduced(shape, dims, keepdim), x.dtype)
    return with_node("mean", y, [x], lambda _, g: _expanded(g, shape, dims, keepdim) / 2.0)


@operation
def amax(x: Tensor) -> Tensor:
    """Return the largest number of each row; equal ones share the gradient. Saves both."""
    node = start_node("amax", [x], [x])
    y = empty(x.shape[:-1], x.dtype)

    def gradients(saved, g):
        x, y = saved
        is_largest = compare(y.unsqueeze(-1), x)
        number = sum_over(is_largest, [-1], keepdim=True, dtype="int64")
        of_each = g.unsqueeze(-1) / number  # all live to the end of the expression
        return of_each * is_largest

    return finish_node(node, y, gradients, [y])


@operation
def vector_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, of which nothing needs a gradient."""
    return empty(x.shape[:-1], x.dtype)


@operation
def norm(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Return the Euclidean norm over a dimension. Saves x and the result."""
    node = start_node("norm", [x], [x])
    y = empty(_reduced(x.shape, [dim], keepdim), x.dtype)

    def gradients(saved, g):
        x, y = saved
        if not keepdim:
            g, y = g.unsqueeze(dim), y.unsqueeze(dim)
        quotient = x / y
        is_zero = compare(y)  # both live to the end of the expression
        return g * quotient

    return finish_node(node, y, gradients, [y])


def normalised(x: Tensor) -> Tensor:
    """Divide each row by its norm (`F.normalize`, torch/nn/functional.py)."""
    return x / norm(x, -1, keepdim=True).clamp().expand(x.shape)


@operation
def prod(x: Tensor, dim: int) -> Tensor:
    """Multiply over a dimension. Saves x and the result.

    While a tracer watches, backward multiplies all other numbers in both directions
    (FunctionsManual.cpp, `prod_safe_zeros_backward`).
    """
    node = start_node("prod", [x], [x])
    y = empty(_reduced(x.shape, [dim], False), x.dtype)

    def gradients(saved, g):
        return prod_backward(g.unsqueeze(dim), saved[0], dim)

    return finish_node(node, y, gradients, [y])


@operation
def prod_backward(g: Tensor, x: Tensor, dim: int) -> Tensor:
    if x.shape[dim] == 1:
        return g
    shape = x.shape
    ones = empty(g.shape, g.dtype)
    before = empty(shape, x.dtype)
    products_before = empty(shape, x.dtype)
    other_numbers = empty((*shape[:dim], shape[dim] - 1, *shape[dim + 1 :]), x.dtype)
    after = empty(shape, x.dtype)
    del ones, other_numbers
    reversed_products = empty(shape, x.dtype)
    products_after = empty(shape, x.dtype)
    del reversed_products
    products = products_before * products_after
    return g * products


@operation
def sum_to(x: Tensor, shape) -> Tensor:
    """Sum over what was broadcast from a shape; return x itself if nothing was."""
    n_new = len(x.shape) - len(shape)
    dims = list(range(n_new))
    for i, (size, wanted) in enumerate(zip(x.shape[n_new:], shape, strict=True)):
        if wanted is not size and wanted == 1 and size != 1:
            dims.append(i + n_new)
    if not dims:
        return x
    y = empty(_reduced(x.shape, dims, True), x.dtype)
    return y.reshape(shape) if n_new else y


@operation
def cumsum(x: Tensor, dim: int) -> Tensor:
    """Cumulative sum. Backward sums from the other end: it flips the gradient twice."""

    def gradients(_, g):
        if g.shape[dim] <= 1 or g.numel() <= 1:
            return g
        flipped, summed = empty_like(g), empty(g.shape, g.dtype)  # live to the end
        return empty(g.shape, g.dtype)

    return with_node("cumsum", empty(x.shape, x.dtype), [x], gradients)


@operation(autocast="float32")
def softmax(x: Tensor, dtype: str | None = None) -> Tensor:
    """Softmax in another dtype begins with a cast, which is live to the end of the operation."""
    cast = x if dtype is None else x.to(dtype)
    return _softmax_of(cast, "softmax")


@operation
def safe_softmax(x: Tensor) -> Tensor:
    """Softmax of math attention, in which rows of −∞ alone are then set to zero in place."""
    y = _softmax_of(x, "safe_softmax")
    is_infinite, rows, zero = (
        empty(x.shape, "bool"),
        empty(x.shape[:-1], "bool"),
        empty((), x.dtype),
    )
    del is_infinite, rows, zero
    return y


@operation(autocast="float32")
def log_softmax(x: Tensor) -> Tensor:
    return _softmax_of(x, "log_softmax")


@operation
def log_softmax_in_dtype(x: Tensor) -> Tensor:
    """Return the same with a dtype as argument, which autocast leaves."""
    return _softmax_of(x, "log_softmax")


def _softmax_of(x: Tensor, name: str) -> Tensor:
    """Save the result, which is contiguous, as the gradient is."""
    y = empty(x.shape, x.dtype)
    is_logarithm = name == "log_softmax"
    return with_node(name, y, [x], lambda saved, g: softmax_backward(g, is_logarithm), [y])


@operation
def softmax_backward(g: Tensor, is_logarithm: bool) -> Tensor:
    """Return the gradient; CUDA's kernel reads the product of gradient and result (SoftMax.cu)."""
    y = empty(g.shape, g.dtype)
    if Active.tape.backend == "gpu" and not is_logarithm:
        product = empty(g.shape, g.dtype)
        del product
    return y


@operation
def logsumexp(x: Tensor) -> Tensor:
    """Return the logarithm of the sum of exponentials of each row. Saves x and the result."""
    node = start_node("logsumexp", [x], [x])
    y = empty(x.shape[:-1], x.dtype)

    def gradients(saved, g):
        x, y = saved
        difference = x - y.unsqueeze(-1)  # both live to the end of the expression
        powers = difference.exp()
        return g.unsqueeze(-1) * powers

    return finish_node(node, y, gradients, [y])


@operation
def topk(x: Tensor, k) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of the last dimension and their places."""
    shape = (*x.shape[:-1], k)
    values, places = empty(shape, x.dtype), empty(shape, "int64")
    before, dtype = x.shape, x.dtype

    def gradients(saved, g, *_):
        return zeros_and_copy(before, dtype)

    values, places = with_node("topk", [values, places], [x], gradients, [places])
    places.node = None
    return values, places


@operation
def sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted numbers and their places, of which nothing needs a gradient."""
    return empty(x.shape, x.dtype), empty(x.shape, "int64")
