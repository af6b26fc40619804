"""Normalisation: LayerNorm (scale and shift) or RMSNorm (scale alone)."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_config import bytes_of, computed_again, exact_bytes, tokens
from modelbudget.memory.timeline import Node, added, times


class NormFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_scale: bool = Field(True, description="norms multiply by a learned scale")
    norm_bias: bool = Field(False, description="norms add a learned shift")

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "norm == 'layernorm' and norm_scale",
            "norm_bias = true needs norm: layernorm and norm_scale: true; "
            "no published model shifts without them",
            when="norm_bias",
        ),
    )


def parameters(a, width=None):
    """One scale and, in a full LayerNorm, one shift a channel; d_model channels unless told.

    LayerNorm: Ba et al. 2016, §3; RMSNorm: Zhang & Sennrich 2019, eq. 4.
    """
    width = a.d_model if width is None else width
    return a.norm_scale * width + a.norm_bias * width


def tensors(a):
    """The scale and the shift are a tensor each."""
    return a.norm_scale + a.norm_bias


def saved(a, r, width=None, vectors=None):
    """Bytes that backward needs: the input, and for each normalised vector, in at least single
    precision, mean and 1/σ (LayerNorm) or 1/rms (RMSNorm).

    A CPU composes RMSNorm of simpler operations and keeps the unscaled output too. One vector of
    d_model for each token unless told: `width` channels a token, `vectors` of them together.
    """
    width = a.d_model if width is None else width
    vectors = tokens(r) if vectors is None else vectors
    states = bytes_of(r.dtype) * tokens(r) * width
    statistics = {"layernorm": 2, "rmsnorm": 1}[a.norm] * exact_bytes(r.dtype) * vectors
    unscaled = is_composed(a, r) * a.norm_scale * states
    return states + statistics + unscaled


def is_composed(a, r) -> int:
    """1 where simpler operations make up the norm: RMSNorm, on a CPU."""
    return int(a.norm == "rmsnorm" and r.backend == "cpu")


def backward(a, r, given=1, residual=0, others=0, width=None) -> list[Node]:
    """Gradients of input, scale and shift, from the gradient of the output, which is freed if
    `given` is 1. With `residual` the input's is added to the gradient that the residual stream has
    there. `others`: 1 if the input is kept for others. d_model channels unless told.
    """
    states = bytes_of(r.dtype) * tokens(r) * (a.d_model if width is None else width)
    of_scale = bytes_of(r.dtype) * parameters(a, width)
    if is_composed(a, r):
        rms = exact_bytes(r.dtype) * tokens(r)
        return composed(a, r, states, rms, of_scale, given, residual, others)
    freed = given * states + saved(a, r, width) - others * states
    return [(states + of_scale, freed), *times(residual, added(states))]


def composed(a, r, states, rms, of_scale, given=1, residual=0, others=0) -> list[Node]:
    """RMSNorm, x / rms · scale, operation by operation: scale; quotient; rms; squares."""
    of_quotient = 1 - (1 - given) * (1 - a.norm_scale)
    return [
        *times(a.norm_scale, scaled(r, states, of_scale, given)),
        (2 * states + rms, states + of_quotient * states),
        *times(residual, added(states)),
        (3 * rms, 4 * rms),
        (states, rms),
        (3 * states, 4 * states - others * states),
        *added(states),
    ]


def scaled(r, states, of_scale, given=1) -> list[Node]:
    """A scale that is a product of its own: gradients of its input and, summed up, of itself."""
    early = computed_again(r)
    return [(2 * states, early * states), (of_scale, (2 - early) * states + given * states)]
