"""Torch's own LayerNorm and RMSNorm over any number of channels."""

from torch import nn


def make_norm(a, width: int) -> nn.Module:
    """The norm that the architecture names, over `width` channels."""
    if a.norm == "rmsnorm":
        return nn.RMSNorm(width, elementwise_affine=a.norm_scale)
    return nn.LayerNorm(width, elementwise_affine=a.norm_scale, bias=a.norm_bias)
