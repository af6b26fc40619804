"""Products with a matrix that is stored in another format and dequantised for each product.

Source: `MatMul4Bit` of bitsandbytes 0.50 (autograd/_functions.py) and its `dequantize_4bit`
(functional.py): the dequantised copy is freed after the product, and made again in the backward
pass. A format whose kernel reads the stored matrix itself needs that copy less.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.products import linear, matmul
from modelbudget.operations.tape import Active, Tensor, empty, product


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
        return matmul(g, dequantised(stored, before_copy))

    return finish_function(node, y, gradients)


@operation
def dequantised(stored: Tensor, before_copy) -> Tensor:
    """Make a copy in the dtype, after the scales if these are quantised too."""
    n, dtype = before_copy
    scales = empty((n,), dtype) if n else None
    return empty(stored.shape, stored.dtype)
