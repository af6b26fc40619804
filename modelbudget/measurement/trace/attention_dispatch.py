"""Which kernel `F.scaled_dot_product_attention` runs on a CUDA device of capability 8.0 or 9.0.

The rules are those of torch 2.13 (`configs/attention_kernels.yaml` has the lines and how they were
read). They are about the tensors of one call, so that any module is traced as a GPU runs it.
"""

from typing import Any, NamedTuple

import torch
from torch.backends import cuda

HALF = (torch.float16, torch.bfloat16)
WIDEST = 256
"""Channels of the widest head that FlashAttention takes."""
ALIGNED = 16
"""Bytes of which a head must be a multiple, for the memory-efficient kernel to load it."""


class Call(NamedTuple):
    """The arguments of one call of `F.scaled_dot_product_attention`, in its order."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    attn_mask: Any = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def widths(self) -> set[int]:
        """Channels of the heads of queries, keys and values."""
        return {x.shape[-1] for x in (self.q, self.k, self.v)}

    @property
    def is_fusible(self) -> bool:
        """Whether the tensors have what both fused kernels need.

        Four dimensions, the same batch, at least one token, one dtype.
        """
        three = (self.q, self.k, self.v)
        return (
            all(x.dim() == 4 and x.shape[-2] > 0 for x in three)
            and len({x.shape[0] for x in three}) == 1
            and len({x.dtype for x in three}) == 1
        )

    @property
    def has_contiguous_channels(self) -> bool:
        """Whether the last dimension of all tensors, and of the mask, is contiguous."""
        mask = () if self.attn_mask is None else (self.attn_mask,)
        return all(x.stride(-1) == 1 for x in (self.q, self.k, self.v, *mask))

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads share keys and values."""
        return len({x.shape[1] for x in (self.q, self.k, self.v)}) > 1


def takes_flash(call: Call) -> bool:
    """Whether FlashAttention runs a call (`can_use_flash_attention`)."""
    q, k = call.q, call.k
    return (
        cuda.flash_sdp_enabled()
        and call.is_fusible
        and call.attn_mask is None
        and len(call.widths) == 1
        and q.shape[-1] <= WIDEST
        and (not call.is_causal or q.shape[-2] == k.shape[-2])
        and q.dtype in HALF
        and (not call.is_grouped or _may_share(call))
        and (call.has_contiguous_channels or q.shape[-1] == 1)
    )


def takes_efficient(call: Call) -> bool:
    """Whether memory-efficient attention runs a call (`can_use_mem_efficient_attention`).

    Torch 2.13 has no grouped heads there.
    """
    q, k, v = call.q, call.k, call.v
    multiple = ALIGNED // q.element_size()
    return (
        cuda.mem_efficient_sdp_enabled()
        and call.is_fusible
        and q.dtype in (*HALF, torch.float32)
        and q.shape[-1] == k.shape[-1]
        and all(x.shape[-1] > 0 and x.shape[-1] % multiple == 0 for x in (q, v))
        and call.has_contiguous_channels
        and not call.is_grouped
    )


def _may_share(call: Call) -> bool:
    """Whether the call allows that several query heads share keys and values, and they divide."""
    heads, of_keys, of_values = (x.shape[1] for x in (call.q, call.k, call.v))
    return call.enable_gqa and of_keys == of_values and heads % of_keys == 0
