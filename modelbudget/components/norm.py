"""Normalisation: LayerNorm (scale and shift) or RMSNorm (scale alone)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Architecture, Count
from modelbudget.run import bytes_of, exact_bytes, tokens


class NormFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_scale: bool = Field(True, description="norms multiply by a learned scale")
    norm_bias: bool = Field(False, description="norms add a learned shift")

    @model_validator(mode="after")
    def shift_needs_scale(self) -> Self:
        if self.norm_bias and (self.norm == "rmsnorm" or not self.norm_scale):
            raise ValueError(
                "norm_bias = true needs norm: layernorm and norm_scale: true; "
                "no published model shifts without them"
            )
        return self


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
    unscaled = int(a.norm == "rmsnorm" and r.kernels == "cpu") * a.norm_scale * states
    return states + statistics + unscaled
