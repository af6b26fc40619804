"""Views: other shapes and strides of the same storage. A reshape that needs a copy makes one.

Source: aten/src/ATen/native/TensorShape.cpp, aten/src/ATen/TensorUtils.cpp (`computeStride`).
"""

from __future__ import annotations

from collections.abc import Iterator

from modelbudget.operations.autograd import with_node
from modelbudget.operations.elementwise import clone_contiguous
from modelbudget.operations.memory_layout import is_contiguous, is_unit
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import (
    Shape,
    Tensor,
    complex_of,
    contiguous_strides,
    empty,
    product,
    real_of,
    steps,
    steps_of,
    view_of,
)


def strides_for(x: Tensor, shape) -> Shape | None:
    """Return the strides with which x has another shape; None if it must be copied for that."""
    if is_contiguous(x, is_unit):
        return contiguous_strides(shape)
    if x.shape and shape and x.shape[0] is shape[0] and not is_unit(shape[0]):
        inner = strides_for(view_of(x, x.shape[1:], x.strides[1:]), shape[1:])
        return None if inner is None else (x.strides[0], *inner)
    # Merge the dimensions of x that follow each other in memory, innermost first.
    blocks: list[list] = []  # [size, stride of the innermost dimension]
    for size, stride in reversed(list(zip(x.shape, x.strides, strict=True))):
        if blocks and stride == blocks[-1][1] * blocks[-1][0]:
            blocks[-1][0] = blocks[-1][0] * size
        elif size != 1:
            blocks.append([size, stride])
    # Each block must be a product of sizes of the new shape.
    strides: list = [0] * len(shape)
    block, filled = 0, 1
    for i in range(len(shape) - 1, -1, -1):
        size = shape[i]
        if block < len(blocks) and filled == blocks[block][0] and size != 1:
            block, filled = block + 1, 1
        if block == len(blocks):
            if size != 1:
                return None
            strides[i] = strides[i + 1] if i + 1 < len(shape) else 1
            continue
        strides[i] = blocks[block][1] * filled
        filled = filled * size
        if filled != blocks[block][0] and filled > blocks[block][0]:
            return None
    return tuple(strides) if block >= len(blocks) - 1 else None


def view(x: Tensor, shape) -> Tensor:
    """Return x with another shape; its strides must allow that."""
    shape = tuple(shape)
    strides = strides_for(x, shape)
    assert strides is not None, (x.shape, x.strides, shape)
    return _viewed(x, shape, strides)


def _viewed(x: Tensor, shape: Shape, strides: Shape) -> Tensor:
    before = x.shape
    return with_node("view", view_of(x, shape, strides), [x], lambda _, g: reshape(g, before))


def unsafe_view(x: Tensor, shape) -> Tensor:
    before = x.shape
    y = view_of(x, shape, contiguous_strides(shape))
    return with_node("unsafe_view", y, [x], lambda _, g: reshape(g, before))


def reshape(x: Tensor, shape) -> Tensor:
    """Return x with another shape: a view of x, or of a contiguous copy."""
    shape = tuple(shape)
    if (strides := strides_for(x, shape)) is not None:
        return _viewed(x, shape, strides)
    return unsafe_view(clone_contiguous(x), shape)


def flatten(x: Tensor, first: int = 0, last: int = -1) -> Tensor:
    first, last = first % len(x.shape), last % len(x.shape)
    if first == last:
        return x
    merged = product(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], merged, *x.shape[last + 1 :]))


def unflatten(x: Tensor, dim: int, sizes) -> Tensor:
    dim = dim % len(x.shape)
    return view(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def permute(x: Tensor, dims) -> Tensor:
    back = [dims.index(i) for i in range(len(dims))]
    y = view_of(x, (x.shape[i] for i in dims), (x.strides[i] for i in dims))
    return with_node("permute", y, [x], lambda _, g: permute(g, back))


def transpose(x: Tensor, dim: int, other: int) -> Tensor:
    shape, strides = list(x.shape), list(x.strides)
    shape[dim], shape[other] = shape[other], shape[dim]
    strides[dim], strides[other] = strides[other], strides[dim]
    y = Tensor(tuple(shape), tuple(strides), x.dtype, x.storage)
    return with_node("transpose", y, [x], lambda _, g: transpose(g, dim, other))


def t(x: Tensor) -> Tensor:
    return transpose(x, 0, 1)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim = dim % (len(x.shape) + 1)
    step = x.strides[dim] * x.shape[dim] if dim < len(x.shape) else 1
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    y = view_of(x, shape, (*x.strides[:dim], step, *x.strides[dim:]))
    return with_node("unsqueeze", y, [x], lambda _, g: squeeze(g, dim))


def squeeze(x: Tensor, dim: int) -> Tensor:
    dim = dim % len(x.shape)
    y = _without_dimension(x, dim)
    return with_node("squeeze", y, [x], lambda _, g: unsqueeze(g, dim))


def _without_dimension(x: Tensor, dim: int) -> Tensor:
    return view_of(x, x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :])


def heads_of(x: Tensor, n_head, width) -> Tensor:
    """(batch, length, n_head · width) to (batch, n_head, length, width)."""
    return transpose(unflatten(x, 2, (n_head, width)), 1, 2)


def expand(x: Tensor, shape) -> Tensor:
    """Broadcast x to a shape, of which -1 keeps a size."""
    n_new = len(shape) - len(x.shape)
    sizes = [
        size if wanted == -1 else wanted
        for wanted, size in zip(shape[n_new:], x.shape, strict=True)
    ]
    strides = [
        stride if size is wanted or size == wanted else 0
        for size, wanted, stride in zip(x.shape, sizes, x.strides, strict=True)
    ]
    y = view_of(x, (*shape[:n_new], *sizes), (0,) * n_new + tuple(strides))
    before = x.shape

    def gradients(_, g):
        from modelbudget.operations.reductions import sum_to

        return sum_to(g, before)

    return with_node("expand", y, [x], gradients)


def repeat_interleave(x: Tensor, n, dim: int) -> Tensor:
    """Repeat each number of a dimension n times: a contiguous copy."""
    dim = dim % len(x.shape)
    y = unsqueeze(x, dim + 1)
    y = expand(y, (*x.shape[: dim + 1], n, *x.shape[dim + 1 :]))
    return flatten(clone_contiguous(y), dim, dim + 1)


def narrow(x: Tensor, dim: int, length, is_first: bool = True) -> Tensor:
    """Return `length` numbers of a dimension: x[…, :length], or others with is_first false.

    The gradient is one of all of x, zero elsewhere. All of a dimension from its first number on is
    x itself (torch's `alias`), which needs none.
    """
    dim = dim % len(x.shape)
    before, dtype = x.shape, x.dtype
    if is_first and (length is before[dim] or length == before[dim]):
        return with_node("alias", view_of(x, x.shape, x.strides), [x], lambda _, g: g)
    y = view_of(x, (*x.shape[:dim], length, *x.shape[dim + 1 :]), x.strides)
    return with_node("slice", y, [x], lambda _, g: slice_backward(before, dtype))


@operation
def slice_backward(shape, dtype: str) -> Tensor:
    return empty(shape, dtype)


def view_as_complex(x: Tensor) -> Tensor:
    """Return the two numbers of the last dimension as one."""
    steps = [step // 2 for step in x.strides[:-1]]
    y = Tensor(x.shape[:-1], tuple(steps), complex_of(x.dtype), x.storage)
    return with_node("view_as_complex", y, [x], lambda _, g: view_as_real(g))


def view_as_real(x: Tensor) -> Tensor:
    """Return each complex number as two in a last dimension."""
    steps = [2 * step for step in x.strides]
    y = Tensor((*x.shape, 2), (*steps, 1), real_of(x.dtype), x.storage)
    return with_node("view_as_real", y, [x], lambda _, g: view_as_complex(g.contiguous()))


def select(x: Tensor, dim: int) -> Tensor:
    """Return one number of a dimension: x[…, i]. The gradient is one of all of x."""
    dim = dim % len(x.shape)
    before, dtype = x.shape, x.dtype
    y = _without_dimension(x, dim)
    return with_node("select", y, [x], lambda _, g: select_backward(before, dtype))


@operation
def select_backward(shape, dtype: str) -> Tensor:
    return empty(shape, dtype)


def split(x: Tensor, sizes, dim: int = -1) -> list[Tensor]:
    """Return views of the parts of a dimension, whose gradients are concatenated."""
    dim = dim % len(x.shape)
    shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    parts = [view_of(x, shape, x.strides) for shape in shapes]
    dtype = x.dtype

    def gradients(_, *of_parts):
        from modelbudget.operations.joining import cat

        of_parts = [
            empty(shape, dtype) if g is None else g
            for g, shape in zip(of_parts, shapes, strict=True)
        ]
        return cat(of_parts, dim)

    return with_node("split", parts, [x], gradients)


def chunk(x: Tensor, n: int, dim: int = -1) -> list[Tensor]:
    """Split a dimension into n parts, of which the last may be smaller or missing."""
    size = x.shape[dim % len(x.shape)]
    if size % n:
        each = -(-size // n)
        sizes = [min(each, size - start) for start in range(0, size, each)]
    else:
        sizes = [size // n] * n
    return split(x, sizes, dim)


def unbind(x: Tensor, dim: int = 0, by_step: bool = False) -> list[Tensor]:
    """Return views of each number of a dimension, whose gradients are stacked.

    `by_step`: for a loop over them, as many as it runs (`steps`).
    """
    dim = dim % len(x.shape)
    n = x.shape[dim]
    parts = [_without_dimension(x, dim) for _ in (steps_of(n) if by_step else range(n))]
    shape, dtype = parts[0].shape, x.dtype

    def gradients(_, *of_parts):
        from modelbudget.operations.joining import stack

        zeros = (view_of(empty((), dtype), shape, (0,) * len(shape)) for g in of_parts if g is None)
        return stack([next(zeros) if g is None else g for g in of_parts], dim, n)

    return with_node("unbind", parts, [x], gradients)


def steps_over(dim: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Run a loop over a dimension: the views of each step."""
    views = (unbind(x, dim, by_step=True) for x in tensors)
    return steps(zip(*views, strict=True), tensors[0].shape[dim])
