"""Normalisation: torch's own LayerNorm and RMSNorm."""

from torch import nn


def make_norm(a, width: int | list[int] | None = None, bias: bool | None = None) -> nn.Module:
    """Build the norm that the architecture names, over `width` channels (d_model)."""
    width = a.d_model if width is None else width
    if a.norm == "rmsnorm":
        return nn.RMSNorm(width, elementwise_affine=a.norm_scale)
    bias = a.norm_bias if bias is None else bias
    return nn.LayerNorm(width, elementwise_affine=a.norm_scale, bias=bias)
