"""Gradients of parameters: those of autograd, or those that a buffer has added up."""

from collections.abc import Sequence

import torch
from torch import nn

from modelbudget.modules.megatron_linear import FUSED


class GradientBuffer:
    """One float32 buffer, to which each gradient is added when autograd has accumulated it.

    A parameter's part of it is its attribute `main_grad`, as in Megatron-Core
    (distributed/param_and_grad_buffer.py; distributed_data_parallel.py, `_make_backward_post_hook`)
    without communication. The buffer exists from the start and is kept from step to step. So are
    the tensors without values that autograd gets of products which add to the buffer themselves
    (`megatron_linear.py`): one for each shape. Transformer Engine makes it with the first product.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        shards = [local(parameter) for parameter in parameters]
        sizes = [parameter.numel() for parameter in shards]
        device = parameters[0].device
        self.numbers = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        for parameter, whole, part in zip(
            shards, parameters, self.numbers.split(sizes), strict=True
        ):
            whole.main_grad = part.view_as(parameter)  # pyright: ignore[reportAttributeAccessIssue]
            whole.register_post_accumulate_grad_hook(_add)
        by_shape: dict[tuple, torch.Tensor] = {}
        for parameter, whole in zip(shards, parameters, strict=True):
            if hasattr(whole, FUSED):
                key = *parameter.shape, parameter.dtype
                none = by_shape[key] if key in by_shape else torch.zeros_like(parameter)
                by_shape[key] = whole.without_values = none  # pyright: ignore[reportAttributeAccessIssue]

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.numbers.zero_()


def _add(parameter) -> None:
    gradient = parameter.grad
    if hasattr(gradient, "redistribute"):
        gradient = gradient.redistribute(placements=parameter.placements)
    parameter.main_grad.add_(local(gradient))
    parameter.grad = None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this device has of a tensor that several may divide, without a copy."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]


def gradients(parameter: nn.Parameter) -> list[torch.Tensor]:
    """Return the gradient of a parameter, from the buffer if there is one; empty if it has none."""
    gradient = getattr(parameter, "main_grad", parameter.grad)
    return [] if gradient is None else [gradient]
