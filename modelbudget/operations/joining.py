"""Concatenation, padding, and rows that are taken or added by their number.

`gather`, `topk` and `index_put` make their gradients out of place while a tracer watches
(ATen/TensorSubclassLikeUtils.h): zeros, and a copy of them with the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelbudget.operations.autograd import by_input, finish_node, start_node, with_node
from modelbudget.operations.memory_layout import empty_like, promoted
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import BYTES, Active, Tensor, empty, view_of

UNSORTED = 3072
"""Up to so many taken rows of a table are added to its gradient one by one (Embedding.cu)."""
ROWS_PER_SUM = 10


@operation
def cat(tensors: Sequence[Tensor], dim: int = -1) -> Tensor:
    """Concatenate tensors; their gradients are views of the result's."""
    first = tensors[0]
    dim = dim % len(first.shape)
    sizes = [x.shape[dim] for x in tensors]
    shape = (*first.shape[:dim], sum(sizes[1:], start=sizes[0]), *first.shape[dim + 1 :])
    y = empty(shape, promoted(*tensors))

    def gradients(_, g):
        return [view_of(g, (*g.shape[:dim], n, *g.shape[dim + 1 :]), g.strides) for n in sizes]

    return with_node("cat", y, list(tensors), gradients)


@operation
def stack(tensors: Sequence[Tensor], dim: int = 0, n=None) -> Tensor:
    """Concatenate tensors along a new dimension; their gradients are views of the result's.

    `n`: how many there are, if these are of a loop that runs few of its steps.
    """
    first = tensors[0]
    dim, n = dim % (len(first.shape) + 1), len(tensors) if n is None else n
    y, n_pieces = empty((*first.shape[:dim], n, *first.shape[dim:]), first.dtype), len(tensors)

    def gradients(_, g):
        shape, strides = g.shape[:dim] + g.shape[dim + 1 :], g.strides[:dim] + g.strides[dim + 1 :]
        return [view_of(g, shape, strides) for _ in range(n_pieces)]

    return with_node("stack", y, list(tensors), gradients)


@operation
def pad(x: Tensor, shape) -> Tensor:
    """Put zeros around x, to a shape; the gradient is a copy of the inner part.

    Without any zeros it is a clone (aten/src/ATen/native/PadNd.cpp).
    """
    before = x.shape
    y = empty_like(x) if shape == before else empty(shape, x.dtype)
    return with_node("pad", y, [x], lambda _, g: _copy_of_inner(g, before))


@operation
def _copy_of_inner(x: Tensor, shape) -> Tensor:
    return empty_like(view_of(x, shape, x.strides))  # its dimensions stay in their order


@operation
def repeat(x: Tensor, times: Sequence) -> Tensor:
    """Repeat x along its dimensions: a contiguous copy. The gradient is summed over the copies."""
    y = empty([size * n for size, n in zip(x.shape, times, strict=True)], x.dtype)
    before = x.shape

    def gradients(_, g):

        shape, dims = [], []
        for size, n in zip(before, times, strict=True):
            if n != 1:
                dims.append(len(shape))
                shape.append(n)
            shape.append(size)
        g = g.reshape(shape)
        return g.sum(dims) if dims else g

    return with_node("repeat", y, [x], gradients)


@operation
def rows(x: Tensor, places: Tensor) -> Tensor:
    """Return x[places] of a vector or a matrix. Saves the places; the gradient is one of all x."""
    before, dtype = x.shape, x.dtype
    node = start_node("index", [x], [places])
    y = empty((*places.shape, *x.shape[1:]), dtype)
    return finish_node(node, y, lambda saved, g: zeros_and_copy(before, dtype))


@operation
def gather(x: Tensor, places: Tensor) -> Tensor:
    """Return one number of the last dimension for each place. Saves x for its shape."""
    before, dtype = x.shape, x.dtype
    node = start_node("gather", [x], [x, places])
    y = empty(places.shape, dtype)
    return finish_node(node, y, lambda saved, g: zeros_and_copy(before, dtype))


@operation
def zeros_and_copy(shape, dtype: str) -> Tensor:
    """Write a gradient into zeros, out of place."""
    zeros = empty(shape, dtype)
    result = empty(shape, dtype)
    del zeros
    return result


@operation
def index_add(x: Tensor, places: Tensor, source: Tensor) -> Tensor:
    """Add rows of a source to rows of x. Saves the source, though only its shape is read."""
    saves = [places, source] if source.needs_gradient else []
    node = start_node("index_add", [x, source], saves)
    shape, dtype = source.shape, source.dtype
    gradients = {0: lambda _, g: g, 1: lambda _, g: empty(shape, dtype)}
    return finish_node(node, empty(x.shape, x.dtype), by_input(gradients))


@operation
def embedding(weight: Tensor, places: Tensor) -> Tensor:
    """Return rows of a table. The gradient is dense: one of the whole table."""
    before, dtype, n = weight.shape, weight.dtype, places.numel()
    node = start_node("embedding", [weight], [places])
    y = empty((*places.shape, *weight.shape[1:]), dtype)
    return finish_node(node, y, lambda saved, g: embedding_dense_backward(before, dtype, n))


@operation
def embedding_dense_backward(shape, dtype: str, n) -> Tensor:
    """Return the gradient of a table of which `n` rows were taken."""
    y = empty(shape, dtype)
    sort_rows(n, shape, dtype)
    return y


def sort_rows(n, shape, dtype: str) -> None:
    """Allocate for a while what CUDA's embedding_dense_backward needs besides its result.

    `n` rows were taken of a table of some shape.
    """
    n_rows, width = shape
    if Active.tape.backend == "gpu" and n > UNSORTED:
        empty((sorted_rows_bytes(n, min(n, n_rows), width, BYTES[dtype]),), "bool")


def sorted_rows_bytes(n, n_distinct, width, size):
    """Return the bytes that CUDA's embedding_dense_backward has beside its result.

    Of `n` taken rows, more than UNSORTED, at most `n_distinct` of which differ, with numbers of
    `size` bytes:
    the places are sorted, and sums of at most ten gradients are kept in at least float32
    (Embedding.cu, EmbeddingBackwardKernel.cu).
    """
    n_sums = n // ROWS_PER_SUM + n_distinct
    n_places = 3 * n + 2 * n_distinct + n_sums + 2
    return BYTES["int64"] * n_places + max(size, 4) * n_sums * width
