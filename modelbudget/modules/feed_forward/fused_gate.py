"""A gated MLP's activation and product in one operation that saves only its input.

The method of Megatron-Core's `fused_bias_swiglu.py` and `fused_bias_geglu.py` (core/fusions/). Its
compiled kernels allocate nothing but their results.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional as F

aten = torch.ops.aten


class Activation(NamedTuple):
    """Functions that write an activation's value, and its gradient, into a given tensor."""

    value: Callable[..., torch.Tensor]
    gradient: Callable[..., torch.Tensor]


ACTIVATIONS = {
    "gelu": Activation(aten.gelu.out, aten.gelu_backward.grad_input),
    "silu": Activation(aten.silu.out, aten.silu_backward.grad_input),
}


def fused_gate(gate_and_up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return activation(gate) · up of (…, 2 · d_ff) as (…, d_ff); activation: gelu or silu."""
    return _FusedGate.apply(gate_and_up, activation)


class _FusedGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_and_up, activation):
        ctx.save_for_backward(gate_and_up)
        ctx.activation = activation
        gate, up = gate_and_up.chunk(2, dim=-1)
        return getattr(F, activation)(gate).mul_(up)

    @staticmethod
    def backward(ctx, *of_product):
        (gate_and_up,), (of_output,) = ctx.saved_tensors, of_product
        activation = ACTIVATIONS[ctx.activation]
        gradient = torch.empty_like(gate_and_up)
        (gate, up), (of_gate, of_up) = (x.chunk(2, dim=-1) for x in (gate_and_up, gradient))
        activation.value(gate, out=of_up).mul_(of_output)
        torch.mul(of_output, up, out=of_gate)
        activation.gradient(of_gate, gate, grad_input=of_gate)
        return gradient, None
