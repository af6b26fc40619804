"""Normalisation: LayerNorm (scale and shift) or RMSNorm (scale alone)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Architecture, Count


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
