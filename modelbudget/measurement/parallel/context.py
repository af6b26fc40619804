"""Attention of several devices that each have a part of the tokens of a sequence, on meta.

Each has consecutive tokens, and torch's all-to-all brings all tokens of a part of the heads to each
device, and the results back (Jacobs et al. 2023, §3); or torch's ring attention computes it, for
which device i has the parts i and −1 − i of twice as many. Positions are those of consecutive
tokens. Collectives move nothing.
"""

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor
from torch.distributed.device_mesh import DeviceMesh

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.parallel.fake_process_group import ring_attention, rotating
from modelbudget.modules.embedding import RotaryPositions
from modelbudget.modules.mixers.attention import Attention
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention


def divide(model: nn.Module, run: RunConfig, mesh: DeviceMesh) -> None:
    """Let attention read the tokens of all devices, and positions begin with this device's."""
    start = mesh.get_local_rank() * own_tokens(run).length
    for module in list(model.modules()):
        if isinstance(module, ScaledDotProductAttention):
            _exchange(module, mesh) if run.context_exchange == "all_to_all" else _ring(
                module, run, mesh
            )
        elif isinstance(module, Attention | RotaryPositions):
            module.start = start


def own_tokens(run: RunConfig) -> RunConfig:
    """Return the run of a device's own tokens."""
    return run.model_copy(update={"length": run.length // run.context_parallel})


def _exchange(core: ScaledDotProductAttention, mesh: DeviceMesh) -> None:
    """Compute a part of the heads for all tokens."""
    compute = core.forward

    def forward(q, k, v, bias=None):
        q, k, v = _to_heads(q, mesh), _to_heads(k, mesh), _to_heads(v, mesh)
        return _to_tokens(compute(q, k, v, bias), mesh)

    core.forward = forward


def _ring(core: ScaledDotProductAttention, run: RunConfig, mesh: DeviceMesh) -> None:
    """Compute attention block by block."""
    on_gpu, rotates = run.backend == "gpu", run.context_exchange == "ring"

    def attend(q, k, v, bias):
        rate = core.dropout.p if core.training else 0.0
        return RingAttention.apply(q, k, v, mesh.get_group(), on_gpu, rotates, rate)

    core.attend = attend


def _to_heads(x, mesh: DeviceMesh):
    """(batch, heads, own tokens, width) to (batch, own heads, tokens, width)."""
    x = x.transpose(1, 2).unflatten(2, (mesh.size(), -1))
    return _all_to_all(x.movedim(2, 0), mesh).movedim(0, 1).flatten(1, 2).transpose(1, 2)


def _to_tokens(x, mesh: DeviceMesh):
    """(batch, own heads, tokens, width) to (batch, heads, own tokens, width)."""
    x = x.transpose(1, 2).unflatten(1, (mesh.size(), -1))
    return _all_to_all(x.movedim(1, 0), mesh).movedim(0, 2).flatten(2, 3).transpose(1, 2)


def _all_to_all(parts, mesh: DeviceMesh) -> torch.Tensor:
    """Exchange parts (devices, …): part i goes to device i."""
    return wait_tensor(all_to_all_single(parts.contiguous(), None, None, mesh.get_group()))


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
