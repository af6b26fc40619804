"""Torch's ring attention over the blocks of all devices, as one operation of autograd.

Torch itself calls it where FlashAttention reads a DTensor; it is called here directly, so that it
also computes a CPU's FlashAttention, which torch has no such rule for. What is saved and how blocks
are merged is torch's.
"""

import torch
from torch.distributed import ProcessGroup

from modelbudget.measurement.parallel.fake_process_group import ring_attention, rotating

aten = torch.ops.aten


class RingAttention(torch.autograd.Function):
    """Causal attention of a device's own queries, to the keys and values of all devices.

    Queries (batch, n_head, own tokens, width), keys and values (batch, n_kv_head, own tokens,
    width). `on_gpu`: with a GPU's kernel, or else a CPU's. `rotates`: keys and values come from one
    device after the other, not all at once; `rate`: of dropout.
    """

    @staticmethod
    def forward(ctx, q, k, v, group: ProcessGroup, on_gpu: bool, rotates: bool, rate: float):
        kernel = aten._scaled_dot_product_flash_attention
        kernel = kernel if on_gpu else aten._scaled_dot_product_flash_attention_for_cpu
        with rotating(rotates):
            out, sums, *rest = ring_attention._templated_ring_attention(
                group, 2, kernel.default, q, k, v, is_causal=True, dropout_p=rate
            )
        ctx.group, ctx.rotates, ctx.known = group, rotates, {"dropout_p": rate}
        seeds = []
        if on_gpu:
            starts, key_starts, longest, longest_key, *seeds = rest[:6]
            ctx.known |= {"cum_seq_q": starts, "cum_seq_k": key_starts}
            ctx.known |= {"max_q": longest, "max_k": longest_key}
        ctx.save_for_backward(q, k, v, out, sums, *seeds)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, sums, *seeds = ctx.saved_tensors
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
        arguments = dict(ctx.known)
        if seeds:
            kernel = aten._scaled_dot_product_flash_attention_backward
            arguments |= dict(zip(("philox_seed", "philox_offset"), seeds, strict=True))
        with rotating(ctx.rotates):
            gradients = ring_attention._templated_ring_attention_backward(
                ctx.group, 2, kernel.default, gradient, "grad_out", q, k, v, out, sums, True,
                **arguments,
            )  # fmt: skip
        return *gradients[:3], None, None, None, None
