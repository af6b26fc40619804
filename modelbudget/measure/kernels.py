"""Which kernels compute attention and norms, whatever the device.

The same model saves other tensors under other kernels. A model traced without storage runs the
very operations that a GPU would, so that its figures hold there.
"""

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class Kernels(TorchFunctionMode):
    """Inside this context attention and norms run as the words of a run say.

    kernels: `gpu` or `cpu`; attention: `math` (scores written out) or `flash` (Dao et al. 2022).
    Raises ValueError where a mask meets a kernel that takes none.
    """

    def __init__(self, kernels: str, attention: str):
        super().__init__()
        attend = {
            ("gpu", "math"): attention_math,
            ("cpu", "math"): attention_math,
            ("gpu", "flash"): attention_flash,
            ("cpu", "flash"): attention_flash_cpu,
        }
        self.replaced = {F.scaled_dot_product_attention: attend[kernels, attention]}
        if kernels == "gpu":
            self.replaced[F.rms_norm] = rms_norm

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.replaced.get(func, func)(*args, **(kwargs or {}))


def attention_math(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def attention_flash(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    refuse(attn_mask)
    kernel = aten._scaled_dot_product_flash_attention
    return kernel(q, k, v, dropout_p, is_causal, scale=scale)[0]


def attention_flash_cpu(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    refuse(attn_mask)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q, k, v, dropout_p, is_causal, scale=scale)[0]


def refuse(mask) -> None:
    if mask is not None:
        raise ValueError("attention: flash takes no mask; allowed: attention: math")


def rms_norm(x, normalized_shape, weight=None, eps=None):
    """Torch composes it of simpler operations without storage, of one on a GPU."""
    if x.is_meta:
        return FusedRMSNorm.apply(x, len(normalized_shape), weight)
    return F.rms_norm(x, normalized_shape, weight, eps)


class FusedRMSNorm(torch.autograd.Function):
    """What a GPU's fused RMSNorm (`aten._fused_rms_norm`) allocates and saves, without storage:
    the input, the weight and, in at least single precision, 1/rms of each vector.
    """

    @staticmethod
    def forward(ctx, x, n_dim: int, weight):
        exact = torch.promote_types(x.dtype, torch.float32)
        inverse = x.new_empty(x.shape[:-n_dim], dtype=exact)
        ctx.save_for_backward(x, weight, inverse)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        of_weight = None if weight is None else torch.empty_like(weight)
        return torch.empty_like(x), None, of_weight
