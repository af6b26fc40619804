"""Linear layers as Megatron-Core and Transformer Engine compute them in training.

Core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`, and Transformer
Engine 2.11, pytorch/module/layernorm_linear.py, `_LayerNormLinear`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.lm_head import LMHead
from modelbudget.modules.mixers.attention import Attention

FUSED = "adds_to_buffer"
"""The attribute of a parameter whose gradient its product adds to a buffer."""


class Devices(Protocol):
    """Devices that each have a part of the length of the states that a layer reads."""

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states of all devices."""
        ...

    def sum(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return this device's part of the sum of the gradients of such states."""
        ...


class Linear(torch.autograd.Function):
    """States (…, d_in) to states (…, d_out).

    `whole`: the parameter itself, which the buffer of gradients marks; `weight` and `bias`: what
    this device has of the parameters; `devices`: those over which the states are gathered, or None.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, whole, devices: Devices | None):
        ctx.save_for_backward(x, weight)
        ctx.whole, ctx.devices, ctx.has_bias = whole, devices, bias is not None
        return F.linear(x if devices is None else devices.gather(x), weight, bias)

    @staticmethod
    def backward(ctx, *of_output):
        (x, weight), (gradient,), devices = ctx.saved_tensors, of_output, ctx.devices
        states = x if devices is None else devices.gather(x)
        of_states = gradient @ weight
        of_x = of_states if devices is None else devices.sum(of_states)
        rows, columns = gradient.flatten(0, -2).T, states.flatten(0, -2)
        if hasattr(ctx.whole, "main_grad") and hasattr(ctx.whole, FUSED):
            total = ctx.whole.main_grad
            torch.addmm(total, rows, columns, out_dtype=torch.float32, out=total)
            of_weight = ctx.whole.without_values.detach()
        else:
            of_weight = rows @ columns
        return of_x, of_weight, rows.sum(1) if ctx.has_bias else None, None, None


def fuses(run: RunConfig) -> bool:
    """Whether products add gradients of weights to the buffer of gradients."""
    return run.gradient_accumulation_fusion and run.gradient_casts == "accumulated"


def products(model: nn.Module) -> Iterator[nn.Linear | LMHead]:
    """Yield the linear layers of attention and MLPs, and the head."""
    for module in model.modules():
        if isinstance(module, Attention | MLP):
            yield from (part for part in module.children() if isinstance(part, nn.Linear))
        elif isinstance(module, LMHead):
            yield module


def replace(module: nn.Linear | LMHead, function) -> None:
    """Let a linear layer compute its product by a function of the states."""
    setattr(module, "product" if isinstance(module, LMHead) else "forward", function)


def arrange(model: nn.Module, run: RunConfig) -> None:
    """Let products of a model on one device add gradients to the buffer, if the run says so.

    Those of several devices are arranged as they are divided (`parallel/divided_model.py`).
    """
    for module in products(model) if fuses(run) else ():
        if run.tensor_parallel == 1:
            setattr(module.weight, FUSED, True)
            replace(module, partial(_product, module))


def _product(module: nn.Linear | LMHead, x: torch.Tensor) -> torch.Tensor:
    return Linear.apply(x, module.weight, module.bias, module.weight, None)
