"""Linear layers whose backward pass adds the gradient of their weight to a float32 buffer.

Source: megatron/core/tensor_parallel/layers.py,
`LinearWithGradAccumulationAndAsyncCommunication`.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.products import linear, mm
from modelbudget.operations.tape import Active, Tensor, empty


def declare_buffered(weight: Tensor) -> None:
    """Allocate what autograd gets in place of the weight's gradient: one tensor for each shape."""
    if Active.tape.cache_length is None and _without_values(weight) is None:
        Active.tape.without_values.append(empty(weight.shape, weight.dtype))


def _without_values(weight: Tensor) -> Tensor | None:
    """Return the tensor that `declare_buffered` has allocated for a weight."""
    layout = weight.dtype, len(weight.shape), weight.shape
    equal = (x for x in Active.tape.without_values if (x.dtype, len(x.shape), x.shape) == layout)
    return next(equal, None)


@operation
def accumulated_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    length=None,
    accumulates: bool = True,
) -> Tensor:
    """Return x Wᵀ + b. Saves x and the weight once the result is there, as a Function does.

    Of a `length` that devices divide (`Length` of `devices/divided_parts.py`), x is this device's
    part, which is gathered for each product.
    """
    tape = Active.tape
    node = start_node("accumulated_linear", [x, weight, bias])
    with tape.without_graph():
        y = linear(x if length is None else length.gather(x), weight, bias)
    has_bias = bias is not None

    def gradients(saved, g):
        x, weight = saved
        states = x if length is None else length.gather(x)
        of_states = g @ weight
        of_x = of_states if length is None else length.sum(of_states)
        rows, columns = g.flatten(0, -2).t(), states.flatten(0, -2)
        if accumulates:
            tape.count_flops(2 * rows.shape[0] * rows.shape[1] * columns.shape[1])
            buffered = _without_values(weight)
            assert buffered is not None
            of_weight = buffered.detach()
        else:
            of_weight = mm(rows, columns)
        return of_x, of_weight, rows.sum([1]) if has_bias else None

    return finish_function(node, y, gradients, [x, weight])
