"""Normalisation: torch's own LayerNorm and RMSNorm."""

from torch import nn
from torch.nn import functional as F


def make_norm(
    a, width: int | None = None, bias: bool | None = None, of_all_heads: bool = False
) -> nn.Module:
    """Build the norm that the architecture names, over `width` channels (d_model).

    `of_all_heads`: it reads (…, n_head, d_head), and normalises the heads of a token as one vector.
    """
    width = a.d_model if width is None else width
    if a.norm == "rmsnorm":
        rms_norm = JointRMSNorm if of_all_heads else nn.RMSNorm
        return rms_norm(width, elementwise_affine=a.norm_scale)
    bias = a.norm_bias if bias is None else bias
    layer_norm = JointLayerNorm if of_all_heads else nn.LayerNorm
    return layer_norm(width, elementwise_affine=a.norm_scale, bias=bias)


class JointRMSNorm(nn.RMSNorm):
    """(…, n_head, d_head) to the same shape: the heads of a token normalised as one vector."""

    def forward(self, x):
        return super().forward(x.flatten(-2)).unflatten(-1, x.shape[-2:])


class JointLayerNorm(nn.LayerNorm):
    """(…, n_head, d_head) to the same shape: the heads of a token normalised as one vector."""

    def forward(self, input):
        return super().forward(input.flatten(-2)).unflatten(-1, input.shape[-2:])


class HeadNorm(nn.LayerNorm):
    """(batch, length, n_head, d) to (batch, length, n_head · d): each head normalised alone."""

    def forward(self, x):
        y = F.layer_norm(x, x.shape[-1:]).flatten(2) * self.weight
        return y if self.bias is None else y + self.bias
