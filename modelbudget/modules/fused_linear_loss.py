"""Head and cross-entropy as Liger-Kernel fuses them, with its kernel as one operation of torch.

The kernel reads logits and writes their gradient over them, without other memory on a GPU; here it
is computed in torch, whose tensors inside of an operation no trace sees.
"""

import math
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

IGNORED = -100
"""The label that has no loss."""
_libraries = []
"""What is registered lives as long as its library does."""


def loss_of(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the mean cross-entropy of a decoder's tokens and targets (batch, length).

    Raises ValueError if its head is more than one matrix.
    """
    head = model.head
    is_stored = head.weight is None  # quantised
    if is_stored or head.bias is not None or hasattr(head, "projection") or head.capped:
        raise ValueError("loss_kernel = fused_linear: a head with more than one matrix")
    states = model.states(tokens)
    return FusedLinearLoss.apply(states.flatten(0, 1), head.weight, targets.flatten())


class FusedLinearLoss(torch.autograd.Function):
    """The loss of states (tokens, d_model), and gradients that are made with it."""

    @staticmethod
    def forward(ctx, x, weight, targets):
        n, n_vocab = len(x), len(weight)
        of_x = torch.zeros_like(x)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = x.new_zeros(n, dtype=torch.float32)
        mask = targets != IGNORED
        number = mask.sum()
        n_chunk = math.ceil(n_vocab / x.shape[1])  # of as many logits as there are states
        size = min(n, 2 ** math.ceil(math.log2(math.ceil(n / n_chunk))))
        buffer = x.new_empty(size, n_vocab)
        for start in range(0, n, size):
            part = slice(start, start + size)
            logits = buffer[: len(x[part])]
            torch.mm(x[part], weight.T, out=logits)
            _kernel()(logits, losses[part], targets[part], number)
            torch.mm(logits, weight, out=of_x[part])
            if of_weight is not None:
                torch.addmm(of_weight, logits.T, x[part], out=of_weight)
            del logits
        del buffer
        ctx.save_for_backward(of_x, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx, *gradients):
        (of_loss,) = gradients
        of_x, of_weight = ctx.saved_tensors
        torch.ones((), device=of_loss.device)  # with which Liger compares the gradient
        return of_x, of_weight, None


@cache
def _kernel():
    """Register the kernel: logits are replaced by their gradient, losses written."""
    library = torch.library.Library("modelbudget", "FRAGMENT")
    name = "cross_entropy_with_gradient_"
    library.define(f"{name}(Tensor(a!) x, Tensor(b!) losses, Tensor targets, Tensor number) -> ()")

    def compute(x, losses, targets, number):
        exact = x.float()
        losses.copy_(F.cross_entropy(exact, targets, reduction="none") / number)
        of_each = exact.softmax(-1) - F.one_hot(targets.clamp(min=0), x.shape[1])
        x.copy_(of_each * (targets != IGNORED).unsqueeze(-1) / number)

    def compute_by_row(x, losses, targets, number):
        for i in range(len(x)):  # a GPU's memory is measured: the kernel has none of its own
            row = slice(i, i + 1)
            compute(x[row], losses[row], targets[row], number)

    library.impl(name, compute, "CPU")
    library.impl(name, compute_by_row, "CUDA")
    library.impl(name, lambda *_: None, "Meta")
    _libraries.append(library)
    return getattr(torch.ops.modelbudget, name)
