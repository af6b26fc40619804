"""Normalisation: LayerNorm (scale and bias) or RMSNorm (scale only)."""

from collections.abc import Callable
from typing import Literal

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.run_values import bytes_of, computed_again, exact_bytes, tokens
from modelbudget.memory.parameter_tensors import Tensor, vector
from modelbudget.memory.timeline import Allocation, Timeline, accumulate, times
from modelbudget.operations.norms import RMS_NORMS, layer_norm
from modelbudget.operations.part import Part, make_part, parameter


class NormFields(Architecture):
    d_model: Count
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_scale: bool = True
    norm_bias: bool = False


def whole_width(a, width):
    """Return the channels of a norm inside of a part, of which each device has `width` (Share)."""
    return getattr(a, "n_sharing_heads", 1) * width


def parameters(a, width=None):
    """One scale and, in LayerNorm with a bias, one bias for each of `width` channels (d_model).

    LayerNorm: Ba et al. 2016, §3; RMSNorm: Zhang & Sennrich 2019, eq. 4.
    """
    width = a.d_model if width is None else width
    return a.norm_scale * width + a.norm_bias * width


def tensors(a, name: str, is_there=1, width=None) -> list[Tensor]:
    """Return the parameter tensors of a norm: scale and bias."""
    width = a.d_model if width is None else width
    return [
        vector(name, width, is_there * has_vector) for has_vector in (a.norm_scale, a.norm_bias)
    ]


def saved(a, r, width=None, vectors=None):
    """Return the bytes saved for backward: the input and the statistics of each normalised vector.

    The statistics are mean and 1/σ (LayerNorm) or 1/rms (RMSNorm), in at least single precision.

    Written out, the unscaled output is saved too, and the input in single precision. `width`:
    channels of a token (d_model); `vectors`: how many vectors are normalised (one for each token).
    """
    width = a.d_model if width is None else width
    vectors = tokens(r) if vectors is None else vectors
    states = bytes_of(r.dtype) * tokens(r) * width
    unscaled = is_written_out(a, r) * a.norm_scale * states
    return states + copies_input(a, r) * states + _statistics(a, r, vectors) + unscaled


def _statistics(a, r, vectors):
    return {"layernorm": 2, "rmsnorm": 1}[a.norm] * exact_bytes(r.dtype) * vectors


def is_written_out(a, r) -> int:
    """1 where the norm is separate operations in at least single precision."""
    return int(a.norm == "rmsnorm" and r.norm_kernel != "fused")


def is_one_operation(a, r):
    """1 where the norm is not written out."""
    return 1 - is_written_out(a, r)


def copies_input(a, r) -> int:
    """1 where the norm saves a copy of its input in single precision, twice as large as the input.

    RMSNorm written out in half precision. Such a norm never saves its input itself.
    """
    return is_written_out(a, r) * int(bytes_of(r.dtype) < exact_bytes(r.dtype))


def forward_temporaries(a, r):
    """Return the bytes that only the forward pass of a norm needs: those of the written-out norm.

    The variance; in half precision, the normalised input before it is cast.
    """
    numbers = 1 + copies_input(a, r) * a.d_model
    return is_written_out(a, r) * exact_bytes(r.dtype) * tokens(r) * numbers


def backward(a, r, frees_gradient=1, residual=0, keeps_input=0, width=None) -> Timeline:
    """Gradients of input, scale and bias from the gradient of the output.

    `frees_gradient` 1: the output's gradient is freed. `residual` 1: the input's gradient is added
    to the residual stream's. `keeps_input` 1: the saved input stays for another reader. A
    written-out norm frees both. `width`: channels of a token (d_model).
    """
    states = bytes_of(r.dtype) * tokens(r) * (a.d_model if width is None else width)
    of_scale = bytes_of(r.dtype) * parameters(a, width)
    if is_written_out(a, r):
        rms = exact_bytes(r.dtype) * tokens(r)
        return composed_backward(a, r, states, rms, of_scale, residual)
    freed = frees_gradient * states + saved(a, r, width) - keeps_input * states
    return [
        Allocation("norm gradient", states + of_scale, freed),
        *times(residual, accumulate(states)),
        Allocation("norm scale gradient done", gradients=of_scale),
    ]


def composed_backward(a, r, states, rms, of_scale, residual=0) -> Timeline:
    """Backward of RMSNorm, x / rms · scale, operation by operation.

    In half precision x / rms is computed in single precision.
    """
    scale = times(a.norm_scale, scale_backward(r, states, of_scale))
    if not copies_input(a, r):
        return [*scale, *_rms_backward(states, rms, residual)]
    return [
        *scale,
        Allocation("output gradient in single precision", 2 * states, states),
        *_rms_backward(2 * states, rms),
        Allocation("input gradient in half precision", states, 2 * states),
        *times(residual, accumulate(states)),
    ]


def _rms_backward(states, rms, residual=0) -> Timeline:
    return [
        Allocation("quotient gradients", 2 * states + rms, 2 * states),
        *times(residual, accumulate(states)),
        Allocation("rms gradient", 3 * rms, 4 * rms),
        Allocation("mean gradient", states, rms),
        Allocation("square gradient", 3 * states, 4 * states),
        *accumulate(states),
    ]


def scale_backward(r, states, of_scale) -> Timeline:
    """Return the backward timeline of a scale that is a separate multiplication.

    The gradient of its input, and its own, summed over the tokens.
    """
    again = computed_again(r)
    return [
        Allocation("scale gradients", 2 * states, again * states),
        Allocation("scale gradient sum", of_scale, (3 - again) * states, gradients=of_scale),
    ]


def forward(a, r) -> Timeline:
    """Return the timeline of a norm of all states that is one operation.

    The normalised copy stays; the statistics are freed.
    """
    vectors = r.batch * r.length
    states, statistics = bytes_of(r.dtype) * vectors * a.d_model, _statistics(a, r, vectors)
    return [Allocation("norm", states + statistics, statistics)]


def make(name: str, a, r, shape=None, bias: bool | None = None) -> Part:
    """Make the norm that the architecture names, over a shape of channels (d_model)."""
    return make_part(name, program, a, r, shape, bias)


def rms_norm(r) -> Callable:
    """Return the operations of RMSNorm; those of the fused one are a GPU's."""
    is_composed = r.norm_kernel == "fused" and r.backend == "cpu"
    return RMS_NORMS["composed" if is_composed else r.norm_kernel]


def program(a, r, shape=None, bias: bool | None = None):
    """Normalise states (…, *shape) over their last dimensions."""
    shape = (a.d_model,) if shape is None else shape
    has_bias = a.norm == "layernorm" and a.norm_scale and (a.norm_bias if bias is None else bias)
    weight = parameter("weight", *shape) if a.norm_scale else None
    shift = parameter("bias", *shape) if has_bias else None

    def forward(x):
        if a.norm == "rmsnorm":
            return rms_norm(r)(x, len(shape), weight)
        return layer_norm(x, len(shape), weight, shift)

    return forward
