"""LayerNorm and RMSNorm: fused into one operation, or written out.

Source: aten/src/ATen/native/layer_norm.cpp and cuda/layer_norm_kernel.cu; transformers'
LlamaRMSNorm and GemmaRMSNorm for those written out.
"""

from __future__ import annotations

from functools import partial

from modelbudget.operations.autograd import finish_node, start_node, with_node
from modelbudget.operations.memory_layout import (
    at_least_float32,
    empty_elementwise,
    empty_like,
    is_channels_last,
)
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Tensor, empty


@operation(autocast="float32")
def layer_norm(x: Tensor, n_dim: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Normalise over the last n_dim dimensions.

    Saves its input, and mean and 1/deviation of each vector in at least float32.
    """
    vectors, statistics = x.shape[:-n_dim] + (1,) * n_dim, at_least_float32(x.dtype)
    inputs = (x, weight, bias)
    node = start_node("layer_norm", inputs, [x, weight, bias])
    y = empty(x.shape, x.dtype)
    averages, inverse = empty(vectors, statistics), empty(vectors, statistics)
    is_wanted = [tensor is not None and tensor.needs_gradient for tensor in inputs]
    layouts = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs]

    def gradients(saved, g):
        return layer_norm_backward(saved[-1], g, is_wanted, layouts)

    return finish_node(node, y, gradients, [averages, inverse])


@operation
def layer_norm_backward(inverse: Tensor, g: Tensor, is_wanted, layouts) -> list:
    """Lay out the gradient of the input as on meta, where traces run.

    There it is a product of 1/deviation and the gradient, which is first copied if it is in half
    precision or channels-last (torch/_decomp/decompositions.py); on a device it is contiguous.
    """
    of_x = None
    if is_wanted[0] and g.dtype == inverse.dtype and not is_channels_last(g):
        of_x = empty_elementwise(g.dtype, inverse, g)
    elif is_wanted[0]:
        of_x = empty(g.shape, g.dtype)
    of_affine = (
        empty(*layout) if wanted else None
        for wanted, layout in zip(is_wanted[1:], layouts[1:], strict=True)
    )
    return [of_x, *of_affine]


@operation(autocast="float32")
def rms_norm(x: Tensor, n_dim: int, weight: Tensor | None) -> Tensor:
    """Save the input and 1/rms of each vector in at least float32, as a GPU's fused kernel does."""
    inverse = empty((*x.shape[:-n_dim], 1), at_least_float32(x.dtype))
    y = empty_like(x)

    def gradients(saved, g):
        x, weight, _ = saved
        return rms_norm_backward(x, weight)

    return with_node("rms_norm", y, [x, weight], gradients, [x, weight, inverse])


@operation
def rms_norm_backward(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    of_weight = None if weight is None else empty_like(weight)
    return empty_like(x), of_weight


@operation(autocast="float32")
def rms_norm_composed(x: Tensor, n_dim: int, weight: Tensor | None) -> Tensor:
    """Compute torch's composition (`rms_norm_composite`), which a CPU runs.

    The temporaries of one C++ expression live to its end.
    """
    dims = [-1 - i for i in range(n_dim)]
    states = x.to(at_least_float32(x.dtype))
    squares = states**2
    averages = squares.mean(dims, keepdim=True)  # to which epsilon is added in place
    inverse = averages.rsqrt()
    del squares, averages
    y = states * inverse
    if weight is not None:
        y = y * weight
    y = y.contiguous()
    del states  # before the cast
    return y.to(x.dtype)


def rms_norm_written_out(
    x: Tensor, n_dim: int, weight: Tensor | None, is_wide: bool = False
) -> Tensor:
    """Normalise in at least float32, one operation at a time; the scale multiplies in the dtype.

    `is_wide`: the scale, too, whose weight has the dtype of x, as OLMo 2's code.
    """
    states = x.to(at_least_float32(x.dtype))
    # The variance lives to the end, unlike what is written in one expression.
    variance = (states**2).mean([-1 - i for i in range(n_dim)], keepdim=True)
    states = states * (variance + 1e-6).rsqrt()
    if weight is None:
        return states.to(x.dtype)
    return (weight * states).to(x.dtype) if is_wide else weight * states.to(x.dtype)


def rms_norm_written_out_exact(x: Tensor, n_dim: int, weight: Tensor | None) -> Tensor:
    """Normalise and scale by 1 + weight in at least float32, one operation at a time."""
    dtype = at_least_float32(x.dtype)
    states = _divided_by_rms(x.to(dtype), n_dim)
    if weight is not None:
        states = states * (weight.to(dtype) + 1.0)
    return states.to(x.dtype)


def _divided_by_rms(x: Tensor, n_dim: int) -> Tensor:
    dims = [-1 - i for i in range(n_dim)]
    return x * ((x**2).mean(dims, keepdim=True) + 1e-6).rsqrt()


RMS_NORMS = {
    "fused": rms_norm,
    "composed": rms_norm_composed,
    "written_out": rms_norm_written_out,
    "written_out_exact": rms_norm_written_out_exact,
    "written_out_wide": partial(rms_norm_written_out, is_wide=True),
}
"""By `norm_kernel`; `composed`: the fused one without a GPU."""
