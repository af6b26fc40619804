"""Gradients of parameters: those of autograd, or those that a buffer has added up."""

from collections.abc import Sequence

import torch
from torch import nn


class GradientBuffer:
    """One float32 buffer, to which each gradient is added when autograd has accumulated it.

    A parameter's part of it is its attribute `main_grad`, as in Megatron-Core
    (distributed/param_and_grad_buffer.py; distributed_data_parallel.py, `_make_backward_post_hook`)
    without communication. The buffer exists from the start and is kept from step to step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        sizes = [parameter.numel() for parameter in parameters]
        device = parameters[0].device
        self.numbers = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        for parameter, part in zip(parameters, self.numbers.split(sizes), strict=True):
            parameter.main_grad = part.view_as(parameter)  # pyright: ignore[reportAttributeAccessIssue]
            parameter.register_post_accumulate_grad_hook(_add)

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.numbers.zero_()


def _add(parameter) -> None:
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


def gradients(parameter: nn.Parameter) -> list[torch.Tensor]:
    """Return the gradient of a parameter, from the buffer if there is one; empty if it has none."""
    found = getattr(parameter, "main_grad", parameter.grad)
    return [] if found is None else [found]
