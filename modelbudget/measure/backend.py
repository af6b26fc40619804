"""The operations of a GPU or of a CPU for attention, norms and dropout, on any device.

The same model saves other tensors with another backend. A model traced without storage runs the
operations that a GPU would, so that its figures hold there.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn import functional as F

aten = torch.ops.aten
RMS_NORM = F.rms_norm


@contextmanager
def backend(name: str, attention_kernel: str):
    """Replace attention, norms and dropout by the operations of a backend, inside this context.

    name: `gpu` or `cpu`; attention_kernel: `math` (scores written out), `flash` (Dao et al. 2022)
    or `efficient` (Rabe & Staats 2021), which a CPU does not have.
    Raises ValueError where a mask meets a kernel that takes none.

    Functions are replaced by name and not by a TorchFunctionMode, which is not active where the
    backward pass computes activations again.
    """
    attend = {
        ("gpu", "math"): attention_math_gpu,
        ("cpu", "math"): attention_math,
        ("gpu", "flash"): attention_flash,
        ("cpu", "flash"): attention_flash_cpu,
        ("gpu", "efficient"): attention_efficient,
    }
    replaced = {"scaled_dot_product_attention": attend[name, attention_kernel]}
    if name == "gpu":
        replaced |= {"rms_norm": rms_norm, "dropout": dropout}
    with patch.multiple(F, **replaced):
        yield


def attention_math(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Torch composes it of simpler operations, on every device."""
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def attention_math_gpu(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """The same; with dropout written out as torch composes it (`attention.cpp`), since without
    storage it would take the dropout of a CPU.
    """
    if dropout_p == 0:
        return attention_math(q, k, v, attn_mask, 0.0, is_causal, scale, enable_gqa)
    dtype, exact = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(exact), k.to(exact), v.to(exact)
    scale = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    q = q * scale
    if is_causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        attn_mask = torch.zeros_like(seen, dtype=exact).masked_fill_(~seen, -torch.inf)
    if enable_gqa:
        k, v = repeated(q, k, v)
    scores = q @ (k.transpose(-2, -1) * scale)
    if attn_mask is not None:
        scores = scores.add_(attn_mask)
    kept = dropout(torch._safe_softmax(scores, -1), dropout_p)
    return (kept @ v).to(dtype)


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


def attention_efficient(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """It knows no groups of heads, and keeps the logarithms of sums for a backward pass alone."""
    refuse(attn_mask)
    if enable_gqa:
        k, v = repeated(q, k, v)
    keeps_sums = torch.is_grad_enabled()
    kernel = aten._scaled_dot_product_efficient_attention
    return kernel(q, k, v, None, keeps_sums, dropout_p, is_causal, scale=scale)[0]


def repeated(q, k, v) -> tuple:
    """Keys and values once for each query head."""
    n_repeat = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(n_repeat, -3), v.repeat_interleave(n_repeat, -3)


def refuse(mask) -> None:
    if mask is not None:
        raise ValueError("a fused attention kernel takes no mask; allowed: attention_kernel: math")


def rms_norm(x, normalized_shape, weight=None, eps=None):
    """Torch composes it of simpler operations without storage, of one on a GPU."""
    if x.is_meta:
        return FusedRMSNorm.apply(x, len(normalized_shape), weight)
    return RMS_NORM(x, normalized_shape, weight, eps)


def dropout(x, p=0.5, training=True, inplace=False):
    """A GPU keeps a mask of one byte an element, a CPU its noise in the dtype of the states."""
    if p == 0 or not training:
        return x
    return aten.native_dropout(x, p, True)[0]


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
