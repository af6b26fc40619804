"""The layout of results: contiguity, the order of dimensions, broadcasting, promotion of dtypes.

Which results are copied and which gradients are contiguous follows from strides; so does whether a
reshape copies. Source: c10/core/MemoryFormat.h, aten/src/ATen/TensorIterator.cpp
(`reorder_dimensions`, `allocate_or_resize_outputs`), aten/src/ATen/native/TensorFactories.cpp
(`empty_like`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from modelbudget.operations.tape import Shape, Tensor, empty

_WIDTH = {
    "bool": 0, "int32": 1, "int64": 2, "bfloat16": 3, "float16": 3, "float32": 4, "float64": 5,
    "complex64": 6, "complex128": 7,
}  # fmt: skip


def promoted(*tensors: Tensor) -> str:
    """Return the dtype of a result: the widest of the tensors that have dimensions."""
    first = tensors[0].dtype
    if all(x.dtype is first for x in tensors):
        return first
    dtypes = [x.dtype for x in tensors if x.shape] or [x.dtype for x in tensors]
    return max(dtypes, key=_WIDTH.__getitem__)


def at_least_float32(dtype: str) -> str:
    """Return the dtype in which kernels accumulate."""
    return "float64" if dtype == "float64" else "float32"


def is_unit(size) -> bool:
    """Return whether a dimension has size 1, with any stride.

    A symbol has not, though a batch may be 1: enough where only strides follow, not copies.
    """
    return isinstance(size, int) and size == 1


def is_contiguous(x: Tensor, is_unit: Callable[[Any], bool] = lambda size: size == 1) -> bool:
    return _is_contiguous(x.shape, x.strides, is_unit)


@lru_cache(maxsize=4096)
def _is_contiguous(shape: Shape, strides: Shape, is_unit: Callable[[Any], bool] = is_unit) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride is step or stride == step:
            step = step * size
        elif not is_unit(size):
            return False
    return True


@lru_cache(maxsize=4096)
def _is_dense(shape: Shape, strides: Shape) -> bool:
    """Return whether no number is left out or read twice (`is_non_overlapping_and_dense`)."""
    if _is_contiguous(shape, strides):
        return True
    step = 1
    dimensions = reversed(list(zip(strides, shape, strict=True)))
    for stride, size in sorted(dimensions, key=lambda pair: pair[0]):
        if stride is step or stride == step:
            step = step * size
        elif not is_unit(size):
            return False
    return True


def is_channels_last(x: Tensor) -> bool:
    """Return whether strides suggest torch.channels_last (`is_channels_last_strides_2d`)."""
    if len(x.shape) != 4 or x.strides[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        step, size = x.strides[dim], x.shape[dim]
        if step < least or (dim == 0 and least == x.strides[1]):
            return False
        least = step * size
    return True


def strides_in_order(shape, order) -> Shape:
    """Return dense strides; `order` names the dimensions as they lie in memory, innermost first."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def empty_like(x: Tensor, dtype: str | None = None) -> Tensor:
    """Allocate a tensor as x, its dimensions in the same order in memory."""
    dtype = dtype or x.dtype
    if _is_dense(x.shape, x.strides):
        return empty(x.shape, dtype, x.strides)
    return empty(x.shape, dtype, strides_in_order(x.shape, memory_order(x.shape, [x.strides])))


def memory_order(shape, strides_of_operands) -> list[int]:
    """Order the dimensions, innermost first, as TensorIterator does: the first operand decides."""
    order = list(range(len(shape)))[::-1]

    def compare(dim: int, other: int) -> int:
        for strides in strides_of_operands:
            step, step_of_other = strides[dim], strides[other]
            if step == 0 or step_of_other == 0:  # broadcast: the next operand decides
                continue
            if step is step_of_other or step == step_of_other:
                if (is_unit(shape[other]) and not is_unit(shape[dim])) or shape[dim] > shape[other]:
                    return 1
                continue
            return 1 if step > step_of_other else -1
        return 0

    for i in range(1, len(order)):  # an insertion sort, for comparisons that may be undecided
        at = i
        for j in range(i - 1, -1, -1):
            sign = compare(order[j], order[at])
            if sign > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif sign < 0:
                break
    return order


def broadcast(*shapes) -> Shape:
    """Return the shape to which all shapes broadcast."""
    first = shapes[0]
    # Shapes of two lengths are not compared: == of tuples would compare sizes first.
    if all(y is first or (len(y) == len(first) and y == first) for y in shapes[1:]):
        return first
    sizes = []
    for i in range(-max(map(len, shapes)), 0):
        candidates = [shape[i] for shape in shapes if len(shape) >= -i]
        if all(size is candidates[0] for size in candidates):
            sizes.append(candidates[0])
            continue
        wide = [size for size in candidates if not is_unit(size)]
        sizes.append(next((size for size in wide if size != 1), 1))
    return tuple(sizes)


def expanded_strides(own: Shape, strides: Shape, shape: Shape) -> Shape:
    """Return the strides of a tensor broadcast to a shape: 0 where it is repeated."""
    n_new = len(shape) - len(own)
    expanded = [
        stride if size is whole or size == whole else 0
        for size, stride, whole in zip(own, strides, shape[n_new:], strict=True)
    ]
    return (0,) * n_new + tuple(expanded)


def empty_elementwise(dtype: str, *operands: Tensor) -> Tensor:
    """Allocate the result of an elementwise operation (TensorIterator)."""
    shape, strides = _of_layouts(*[(x.shape, x.strides) for x in operands])
    return empty(shape, dtype, strides)


@lru_cache(maxsize=4096)
def _of_layouts(*layouts: tuple[Shape, Shape]) -> tuple[Shape, Shape | None]:
    """Return the shape and the strides of a result; None if it is contiguous."""
    (shape, strides), *more = layouts
    n_dim = len(shape)
    if all(other is shape or (len(other) == n_dim and other == shape) for other, _ in more):
        if all(other is strides or other == strides for _, other in more):
            if _is_dense(shape, strides):
                return shape, strides
        elif all(_is_contiguous(*layout) for layout in layouts):
            return shape, None
    else:
        shape = broadcast(*[of_operand for of_operand, _ in layouts])
    expanded = [expanded_strides(*layout, shape) for layout in layouts]
    return shape, strides_in_order(shape, memory_order(shape, expanded))
