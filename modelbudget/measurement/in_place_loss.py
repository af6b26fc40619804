"""Cross-entropy whose softmax and gradient are computed in the tensor that it reads.

The method of Megatron-Core's `VocabParallelCrossEntropy` (core/tensor_parallel/cross_entropy.py) on
one device.
"""

import torch


def loss_of(logits: torch.Tensor, targets: torch.Tensor, copies: bool) -> torch.Tensor:
    """Compute the mean cross-entropy of logits (…, n_vocab) and targets (…).

    `copies`: the softmax replaces a copy of the logits in at least float32, if they have another
    dtype; otherwise the logits themselves.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32) if copies else logits.dtype
    return _InPlace.apply(logits.flatten(0, -2), targets.flatten(), dtype).mean()


class _InPlace(torch.autograd.Function):
    """Losses of logits (tokens, n_vocab)."""

    @staticmethod
    def forward(ctx, logits, targets, dtype):
        numbers = logits.detach().to(dtype)
        rows = targets.clone()
        # Targets that another device has; on one device there are none.
        mask = (targets < 0).logical_or_(targets >= numbers.shape[-1])
        rows.masked_fill_(mask, 0)
        numbers -= numbers.amax(-1, keepdim=True)
        tokens = torch.arange(len(rows), device=rows.device)
        of_target = numbers[tokens, rows]
        total = numbers.exp_().sum(-1)
        numbers.div_(total.unsqueeze(-1))
        ctx.save_for_backward(numbers, mask, rows)
        return total.log_() - of_target

    @staticmethod
    def backward(ctx, *of_losses):
        (numbers, mask, rows), (given,) = ctx.saved_tensors, of_losses
        tokens = torch.arange(len(rows), device=rows.device)
        is_there = 1 - mask.to(numbers.dtype)
        numbers[tokens, rows] -= is_there
        return numbers.mul_(given.unsqueeze(-1)), None, None
