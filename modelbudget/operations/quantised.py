"""Products with a matrix that is stored in another format and dequantised for each product.

Source: `MatMul4Bit` of bitsandbytes 0.50 (autograd/_functions.py) and its `dequantize_4bit`
(functional.py): the dequantised copy is freed after the product, and made again in the backward
pass. A format whose kernel reads the stored matrix itself needs that copy less.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_node, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.products import linear, matmul
from modelbudget.operations.tape import Active, Tensor, empty


def quantised_linear(x: Tensor, stored: Tensor, bias: Tensor | None, n_nested_scale=0) -> Tensor:
    """Return x Wᵀ + b for a frozen W, which is stored with `n_nested_scale` quantised scales."""
    node = start_node("quantised_linear", [x])
    # As in a torch.autograd.Function, whose forward leaves no nodes.
    with Active.tape.without_graph():
        y = linear(x, _dequantised(stored, n_nested_scale), bias).detach()

    def gradients(_, g):
        return matmul(g, _dequantised(stored, n_nested_scale))

    y = finish_node(node, y, gradients)
    if node is not None:
        node.is_function = True
    return y


@operation
def _dequantised(stored: Tensor, n_nested_scale) -> Tensor:
    """Make a copy in the dtype, after the scales if these are quantised too."""
    scales = empty((n_nested_scale,), "float32") if n_nested_scale else None
    return empty(stored.shape, stored.dtype)
