"""Products with a frozen matrix that is stored in another format: of 8-bit numbers, or dequantised.

Source: `MatMul8bitLt` of bitsandbytes 0.50 (autograd/_functions.py) and its kernels of CUDA
(backends/cuda/ops.py), for states of which no channel has an outlier; `MatMul4Bit` and its
`dequantize_4bit` (functional.py): the dequantised copy is freed after the product, and made again
in the backward pass. A format whose kernel reads the stored matrix itself needs that copy less.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.products import linear
from modelbudget.operations.tape import Active, Tensor, empty, product


def int8_linear(x: Tensor, stored: Tensor) -> Tensor:
    """Return x Wᵀ for a frozen W. Its backward pass makes a copy of W in the dtype of x.

    The function keeps x as an attribute, which no activation checkpoint sees: it is there until the
    loss is freed.
    """
    node, d_out = start_node("int8_linear", [x]), stored.shape[0]
    kept = x.detach()
    with Active.tape.without_graph():
        y = _int8_product(x, d_out)

    def gradients(_, g):
        rows = g.reshape((product(g.shape[:-1]), d_out)).contiguous()
        copy = _dequantised(stored, kept.dtype)
        return (rows @ copy).reshape(kept.shape)

    return finish_function(node, y, gradients)


@operation
def _int8_product(x: Tensor, d_out) -> Tensor:
    """Quantise the states row by row, multiply into int32, and scale that in float16."""
    *outer, d_in = x.shape
    n = product(outer)
    rows = x.reshape((n, d_in))  # live to the end
    half = rows.to("float16")
    scales, in_8_bits = empty((n,), "float32"), empty((n, d_in), "bool")
    magnitudes = empty((n, d_in), "float16")
    are_outliers = empty((n, d_in), "bool")
    del magnitudes
    has_outliers = empty((), "bool")
    del half, are_outliers, has_outliers
    Active.tape.count_flops(2 * n * d_in * d_out)
    sums = empty((*outer, d_out), "int32")
    y = empty((*outer, d_out), "float16").to(x.dtype)
    del sums, scales, in_8_bits
    return y


@operation
def _dequantised(stored: Tensor, dtype: str) -> Tensor:
    copy = empty(stored.shape, dtype)
    scales = empty((stored.shape[0], 1), "float32")
    del scales
    return copy


def quantised_linear(
    x: Tensor, stored: Tensor, bias: Tensor | None, before_copy, n_without_copy: int = 0
) -> Tensor:
    """Return x Wᵀ + b for a frozen W; `before_copy`: numbers and dtype of what its copy reads.

    Without a gradient, up to `n_without_copy` rows of x are multiplied with the stored numbers.
    """
    node = start_node("quantised_linear", [x])
    if node is None and product(x.shape[:-1]) <= n_without_copy:
        return linear(x, stored, bias)
    # As in a torch.autograd.Function, whose forward leaves no nodes.
    with Active.tape.without_graph():
        y = linear(x, dequantised(stored, before_copy), bias).detach()

    def gradients(_, g):
        return g @ dequantised(stored, before_copy)

    return finish_function(node, y, gradients)


@operation
def dequantised(stored: Tensor, before_copy) -> Tensor:
    """Make a copy in the dtype, after the scales if these are quantised too."""
    n, dtype = before_copy
    scales = empty((n,), dtype) if n else None
    return empty(stored.shape, stored.dtype)
