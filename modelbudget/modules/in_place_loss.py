"""Cross-entropy whose softmax and gradient are computed in the tensor that it reads.

The method of Megatron-Core's `VocabParallelCrossEntropy` (core/tensor_parallel/cross_entropy.py)
on one device, or on those that divide the vocabulary.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import distributed


class Vocabulary(NamedTuple):
    """The tokens whose logits a device has, and the devices that have the others, if any."""

    first: int
    group: distributed.ProcessGroup | None

    def over_devices(self, x: torch.Tensor, operation=distributed.ReduceOp.SUM) -> torch.Tensor:
        """Return numbers of each token, replaced by their sum or maximum over all devices."""
        if self.group is not None:
            distributed.all_reduce(x, operation, self.group)
        return x


def loss_of(logits: torch.Tensor, targets: torch.Tensor, copies: bool) -> torch.Tensor:
    """Compute the mean cross-entropy of logits (…, n_vocab) and targets (…).

    `copies`: the softmax replaces a copy of the logits in at least float32, if they have another
    dtype; otherwise the logits themselves.
    """
    vocabulary = Vocabulary(0, None)
    # Of a DTensor, whose class takes half a second to import.
    mesh = getattr(logits, "device_mesh", None)
    if mesh is not None:
        group, logits = mesh.get_group(), cast(Any, logits).to_local()
        vocabulary = Vocabulary(distributed.get_rank(group) * logits.shape[-1], group)
    dtype = torch.promote_types(logits.dtype, torch.float32) if copies else logits.dtype
    return _InPlace.apply(logits.flatten(0, -2), targets.flatten(), dtype, vocabulary).mean()


class _InPlace(torch.autograd.Function):
    """Losses of logits (tokens, n_vocab), or of a device's part of them."""

    @staticmethod
    def forward(ctx, logits, targets, dtype, vocabulary):
        numbers = logits.detach().to(dtype)
        rows = targets - vocabulary.first
        mask = (rows < 0).logical_or_(rows >= numbers.shape[-1])  # another device has the logit
        rows.masked_fill_(mask, 0)
        largest = distributed.ReduceOp.MAX
        numbers -= vocabulary.over_devices(numbers.amax(-1, keepdim=True), largest)
        tokens = torch.arange(len(rows), device=rows.device)
        of_target = vocabulary.over_devices(numbers[tokens, rows].masked_fill_(mask, 0))
        total = vocabulary.over_devices(numbers.exp_().sum(-1))
        numbers.div_(total.unsqueeze(-1))
        ctx.save_for_backward(numbers, mask, rows)
        return total.log_() - of_target

    @staticmethod
    def backward(ctx, *of_losses):
        (numbers, mask, rows), (of_loss,) = ctx.saved_tensors, of_losses
        tokens = torch.arange(len(rows), device=rows.device)
        is_there = 1 - mask.to(numbers.dtype)
        numbers[tokens, rows] -= is_there
        return numbers.mul_(of_loss.unsqueeze(-1)), None, None, None
