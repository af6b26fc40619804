"""Normalisation: torch's own LayerNorm and RMSNorm."""

from torch import nn
from torch.nn import functional as F


def make_norm(a, width: int | list[int] | None = None, bias: bool | None = None) -> nn.Module:
    """Build the norm that the architecture names, over `width` channels (d_model)."""
    width = a.d_model if width is None else width
    if a.norm == "rmsnorm":
        return nn.RMSNorm(width, elementwise_affine=a.norm_scale)
    bias = a.norm_bias if bias is None else bias
    return nn.LayerNorm(width, elementwise_affine=a.norm_scale, bias=bias)


class HeadNorm(nn.LayerNorm):
    """(batch, length, n_head, d) to (batch, length, n_head · d): each head normalised alone."""

    def forward(self, x):
        y = F.layer_norm(x, x.shape[-1:]).flatten(2) * self.weight
        return y if self.bias is None else y + self.bias
