"""Normalisation: torch's own LayerNorm and RMSNorm."""

from torch import nn


def make_norm(a) -> nn.Module:
    """The norm that the architecture names, over d_model channels."""
    if a.norm == "rmsnorm":
        return nn.RMSNorm(a.d_model, elementwise_affine=a.norm_scale)
    return nn.LayerNorm(a.d_model, elementwise_affine=a.norm_scale, bias=a.norm_bias)
