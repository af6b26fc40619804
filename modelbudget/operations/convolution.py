"""Convolution over the last dimension, of all channels or of each with a kernel of its own.

Source: tools/autograd/derivatives.yaml (`convolution`), torch/_meta_registrations.py (`meta_conv`).
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_node, start_node
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Tensor, empty


@operation(autocast="lower")
def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve x (batch, channels, length) with kernels (channels of the result, in each, span).

    Saves x and the weight. The backward pass computes all gradients in one operation.
    """
    batch, _, length = x.shape
    n_channel, n_in, span = weight.shape
    inputs = (x, weight, bias)
    node = start_node("convolution", inputs, [x, weight])
    y = empty((batch, n_channel, length - span + 1), x.dtype)
    n_flops = 2 * batch * n_channel * (length - span + 1) * n_in * span
    Active.tape.count_flops(n_flops)
    wanted = [None if z is None or not z.needs_gradient else (z.shape, z.dtype) for z in inputs]

    def gradients(saved, g):
        Active.tape.count_flops(n_flops * sum(layout is not None for layout in wanted[:2]))
        return convolution_backward(wanted)

    return finish_node(node, y, gradients)


@operation
def convolution_backward(wanted) -> list[Tensor | None]:
    return [None if layout is None else empty(*layout) for layout in wanted]
