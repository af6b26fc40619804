"""Attention, norms and dropout of a GPU's or a CPU's backend, on any device.

Backends save different tensors for the same model. A model traced on meta runs the operations of a
GPU, so that its figures hold there.
"""

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import _meta_registrations, nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.trace.attention_dispatch import Call, takes_efficient, takes_flash

aten = torch.ops.aten
RMS_NORM = F.rms_norm
SCORE_CAP = 50.0
"""Gemma 2's largest score (Gemma Team 2024b, §2)."""
ALIGNED = 8
"""Elements of which heads, for a GPU's FlashAttention, and rows of a mask, for its memory-efficient
attention, are a multiple; torch pads others.
"""
GROUPED_MM = _meta_registrations._meta_grouped_mm_common


@contextmanager
def kernels(run: RunConfig):
    """Replace by the operations of a run all that our modules compute, inside this context."""
    with backend(run.backend, run.attention_kernel), written_out(run):
        yield


@contextmanager
def written_out(run: RunConfig):
    """Replace what a run computes one operation at a time, inside this context, on any device."""
    with ExitStack() as stack:
        if run.attention_kernel == "written_out":
            attend = partial(
                attention_written_out,
                capped=run.score_cap == "tanh",
                exact=run.softmax_dtype == "float32" or run.autocast != "none",
            )
            replaced = patch.object(F, "scaled_dot_product_attention", of_arguments(attend))
            stack.enter_context(replaced)
        if run.norm_kernel != "fused":
            stack.enter_context(patch.object(F, "rms_norm", RMS_NORMS[run.norm_kernel]))
        if run.activation_kernel in GELUS:
            stack.enter_context(patch.object(F, "gelu", GELUS[run.activation_kernel]))
        yield


def of_module(model: nn.Module, name: str = "gpu", attention_kernel: str = "flash"):
    """Replace what a user's module computes by the operations of a GPU or a CPU.

    A kernel is run where torch would run it for the call, also by a name that the module's file has
    imported from `torch.nn.functional`.
    """
    code = {sys.modules[type(module).__module__] for module in model.modules()}
    return backend(name, attention_kernel, repeats=False, code=code)


@contextmanager
def backend(
    name: str, attention_kernel: str, repeats: bool = True, code: Iterable[ModuleType] = ()
):
    """Replace attention, norms and dropout by the operations of a backend, inside this context.

    Grouped products of experts run on meta in any dtype, as on devices.

    name: `gpu` or `cpu`; attention_kernel: `math` (materialised scores), `flash` (Dao et al. 2022)
    or `efficient` (Rabe & Staats 2021), which a CPU does not have; `written_out` needs none here.
    With `flash`, a GPU runs of each call what torch's dispatch runs: FlashAttention where it takes
    the call, else the memory-efficient kernel, else math. With `efficient`, grouped heads are
    repeated for that kernel (`repeats`), or it runs only what torch's dispatch gives to it. Raises
    ValueError where a CPU's fused kernel is called with a mask.

    `code`: files in which the functions are replaced too, where these have imported them by name.

    Functions are replaced by name, not by a TorchFunctionMode, which is inactive when the backward
    pass recomputes activations.
    """
    attend = {
        ("gpu", "math"): attention_math_gpu,
        ("cpu", "math"): attention_math,
        ("gpu", "flash"): attention_dispatched,
        ("cpu", "flash"): attention_flash_cpu,
        ("gpu", "efficient"): attention_efficient if repeats else attention_without_flash,
    }
    replaced: dict[str, Any] = {}
    if attention_kernel != "written_out":
        replaced["scaled_dot_product_attention"] = of_arguments(attend[name, attention_kernel])
    if name == "gpu":
        replaced |= {"rms_norm": rms_norm, "dropout": dropout}
    grouped = patch.object(_meta_registrations, "_meta_grouped_mm_common", grouped_mm)
    with ExitStack() as stack:
        stack.enter_context(grouped)
        for function, replacement in replaced.items():
            original = getattr(F, function)
            for namespace in (F, *code):
                for imported in [
                    key for key, value in vars(namespace).items() if value is original
                ]:
                    stack.enter_context(patch.object(namespace, imported, replacement))
        yield


def of_arguments(attend: Callable[[Call], torch.Tensor]) -> Callable:
    """Return attention with the arguments of torch's function."""
    return lambda *args, **kwargs: attend(Call(*args, **kwargs))


def attention_math(call: Call):
    """Compute attention with torch's composition of simpler operations."""
    *tensors, scale, enable_gqa = call
    math_ = aten._scaled_dot_product_attention_math
    return math_(*tensors, scale=scale, enable_gqa=enable_gqa)[0]


def attention_math_gpu(call: Call):
    """Compute attention as `attention_math`, with the dropout of a GPU.

    Dropout is composed as in torch's `attention.cpp`: on meta, torch would use that of a CPU.
    """
    if call.dropout_p == 0:
        return attention_math(call)
    dtype, exact = call.q.dtype, torch.promote_types(call.q.dtype, torch.float32)
    q, k, v, attn_mask = call.q.to(exact), call.k.to(exact), call.v.to(exact), call.attn_mask
    scale = (q.shape[-1] ** -0.5 if call.scale is None else call.scale) ** 0.5
    q = q * scale
    if call.is_causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        attn_mask = torch.zeros_like(seen, dtype=exact).masked_fill_(~seen, -torch.inf)
    if call.enable_gqa:
        k, v = repeated(q, k, v)
    scores = q @ (k.transpose(-2, -1) * scale)
    if attn_mask is not None:
        scores = scores.add_(attn_mask)
    kept = dropout(aten._safe_softmax(scores, -1), call.dropout_p)
    return (kept @ v).to(dtype)


def attention_written_out(call: Call, capped: bool = False, exact: bool = True):
    """Compute attention one operation at a time, as eager attention of transformers' Gemma 2 does.

    `capped`: tanh caps the scores; `exact`: the softmax is in at least float32.
    """
    q, k, v = call[:3]
    if call.enable_gqa:
        k, v = (repeated_whole(q, x) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if call.scale is None else call.scale)
    if capped:
        scores = scores / SCORE_CAP
        scores = torch.tanh(scores)
        scores = scores * SCORE_CAP
    scores = scores + call.attn_mask
    dtype = torch.promote_types(q.dtype, torch.float32) if exact else q.dtype
    scores = F.softmax(scores, dim=-1, dtype=dtype).to(q.dtype)
    scores = F.dropout(scores, call.dropout_p)
    result = scores @ v
    return result.transpose(1, 2).contiguous().transpose(1, 2)


def repeated_whole(q, x):
    """Repeat heads (batch, n_kv_head, length, width) for each query head by one copy."""
    n_repeat = q.shape[1] // x.shape[1]
    return x[:, :, None].expand(-1, -1, n_repeat, -1, -1).flatten(1, 2)


def attention_dispatched(call: Call):
    """Compute attention by the first kernel that torch tries and that takes the call."""
    return attention_flash(call) if takes_flash(call) else attention_without_flash(call)


def attention_without_flash(call: Call):
    """Compute attention by the memory-efficient kernel if that takes the call, else by math."""
    return attention_efficient(call) if takes_efficient(call) else attention_math_gpu(call)


def attention_flash(call: Call):
    """Compute FlashAttention, with heads padded to a multiple of 8 (torch's `pad_last_dim`)."""
    q, k, v, _, dropout_p, is_causal, scale, _ = call
    width = q.shape[-1]
    scale = width**-0.5 if scale is None else scale
    more = -width % ALIGNED
    if more:
        q, k, v = (F.pad(x, (0, more)) for x in (q, k, v))
    kernel = aten._scaled_dot_product_flash_attention
    result = kernel(q, k, v, dropout_p, is_causal, scale=scale)[0]
    return result[..., :width] if more else result


def attention_flash_cpu(call: Call):
    q, k, v, attn_mask, dropout_p, is_causal, scale, _ = call
    if attn_mask is not None:
        raise ValueError("a CPU's flash attention takes no mask here; allowed: "
                         "attention_kernel: math")  # fmt: skip
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q, k, v, dropout_p, is_causal, scale=scale)[0]


def attention_efficient(call: Call):
    """Compute memory-efficient attention.

    The kernel has no grouped heads, which are repeated, and returns log-sum-exp only if a backward
    pass needs it (`should_compute_logsumexp`).
    """
    q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa = call
    if enable_gqa:
        k, v = repeated(q, k, v)
    keeps_sums = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    kernel = aten._scaled_dot_product_efficient_attention
    bias = None if attn_mask is None else added(attn_mask, q, k)
    return kernel(q, k, v, bias, keeps_sums, dropout_p, is_causal, scale=scale)[0]


def added(mask, q, k):
    """Return a mask as what the memory-efficient kernel adds to the scores.

    Booleans become numbers, rows are padded to a multiple of 8 and sliced again, and the result is
    a view of all heads (`convert_boolean_attn_mask` and `preprocess_mask` in torch's
    native/transformers/attention.cpp).
    """
    if mask.dtype == torch.bool:
        hidden = torch.full((), -torch.inf, dtype=q.dtype, device=q.device)
        mask = torch.where(mask, 0.0, hidden)
    if mask.stride(-1) != 1 or any(stride % ALIGNED for stride in mask.stride()[:-1]):
        n = mask.shape[-1]
        mask = F.pad(mask, (0, ALIGNED - n % ALIGNED))[..., :n]
    return mask.expand(*q.shape[:-1], k.shape[-2])


def repeated(q, k, v) -> tuple:
    """Repeat keys and values for each query head."""
    n_repeat = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(n_repeat, -3), v.repeat_interleave(n_repeat, -3)


def rms_norm(x, normalized_shape, weight=None, eps=None):
    """Compute RMSNorm in one operation as on a GPU; on meta, torch would compose it of several."""
    if x.is_meta:
        return FusedRMSNorm.apply(x, len(normalized_shape), weight)
    return RMS_NORM(x, normalized_shape, weight, eps)


def rms_norm_written_out(x, normalized_shape, weight=None, eps=None, wide=False):
    """Compute RMSNorm in at least float32, one operation at a time, as Llama's code does.

    `wide`: the scale, too, whose weight has the dtype of x, as OLMo 2's code does.
    """
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    variance = exact.pow(2).mean([-1 - i for i in range(len(normalized_shape))], keepdim=True)
    exact = exact * torch.rsqrt(variance + eps)
    if weight is None:
        return exact.to(x.dtype)
    return (weight * exact).to(x.dtype) if wide else weight * exact.to(x.dtype)


def rms_norm_exact(x, normalized_shape, weight=None, eps=None):
    """Compute RMSNorm and its scale, 1 + weight, in at least float32, as Gemma's code does."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    exact = torch.promote_types(x.dtype, torch.float32)
    normed = over_rms(x.to(exact), [-1 - i for i in range(len(normalized_shape))], eps)
    if weight is not None:
        normed = normed * (1 + weight.to(exact))
    return normed.to(x.dtype)


def over_rms(x, dim: list[int], eps: float):
    """Divide by the root of the mean square over some dimensions."""
    return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + eps)


RMS_NORMS = {
    "written_out": rms_norm_written_out,
    "written_out_exact": rms_norm_exact,
    "written_out_wide": partial(rms_norm_written_out, wide=True),
}


def gelu_written_out(x):
    """Compute GELU's tanh approximation (Hendrycks & Gimpel 2016, §2), as OpenAI's GPT-2 does."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def gelu_factored(x):
    """Compute the same approximation as `gelu_fast` of transformers, which factors x out."""
    return 0.5 * x * (1 + torch.tanh(x * math.sqrt(2 / math.pi) * (1 + 0.044715 * x * x)))


GELUS = {"written_out": gelu_written_out, "written_out_factored": gelu_factored}


def dropout(x, p=0.5, training=True, inplace=False):
    """Apply a GPU's dropout, which saves one byte an element; a CPU's saves noise in x's dtype."""
    if p == 0 or not training:
        return x
    return aten.native_dropout(x, p, True)[0]


def grouped_mm(a, b, *args, offs=None, out_dtype=None, **kwargs):
    """Allocate the result of grouped products on meta, where torch allows bfloat16 only."""
    if a.dtype == torch.bfloat16:
        return GROUPED_MM(a, b, *args, offs=offs, out_dtype=out_dtype, **kwargs)
    return _meta_registrations._create_grouped_mm_output_tensor(a, b, offs, out_dtype)


class FusedRMSNorm(torch.autograd.Function):
    """Allocations and saved tensors of a GPU's fused RMSNorm (`aten._fused_rms_norm`) on meta.

    Saves the input, the weight and, in at least float32, 1/rms of each vector.
    """

    @staticmethod
    def forward(ctx, x, n_dim: int, weight):
        exact = torch.promote_types(x.dtype, torch.float32)
        inverse = torch.empty_like(x.flatten(-n_dim)[..., :1], dtype=exact)
        ctx.save_for_backward(x, weight, inverse)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        of_weight = None if weight is None else torch.empty_like(weight)
        return torch.empty_like(x), None, of_weight
