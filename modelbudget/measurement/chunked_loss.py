"""Head and loss in chunks of the tokens, with the gradients of each chunk at once.

The method of torchtitan's `ChunkedLossWrapper` (components/loss.py).
"""

from typing import cast

import torch
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.decoder import DecoderModel


def loss_of(
    model: DecoderModel, run: RunConfig, tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Compute the mean cross-entropy of tokens and targets (batch, length), in `loss_chunks` parts.

    The gradients of the head are there afterwards. That of the states, gathered in at least
    float32, is what the backward pass of the loss begins with.
    """
    states = model.states(tokens)
    gathered = torch.zeros_like(states, dtype=torch.promote_types(states.dtype, torch.float32))
    loss, logits = gathered.new_zeros(()), None
    xs, gradients = (
        one.detach().flatten(0, 1).chunk(run.loss_chunks) for one in (states, gathered)
    )
    for x, gradient, labels in zip(
        xs, gradients, targets.flatten().chunk(run.loss_chunks), strict=True
    ):
        logits = model.head(x.requires_grad_())
        one, logits = _sum_of(logits, labels, run), logits if run.outputs == "kept" else None
        one = one / targets.numel()
        one.backward()
        gradient.copy_(cast(torch.Tensor, x.grad))
        x.grad = None
        loss = loss + one.detach()
    return _GivenGradient.apply(states, gathered.to(states.dtype), loss)


def _sum_of(logits: torch.Tensor, targets: torch.Tensor, run: RunConfig) -> torch.Tensor:
    """Compute the summed cross-entropy of logits (tokens, n_vocab) and targets (tokens)."""
    if run.loss_dtype == "float32":
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")


class _GivenGradient(torch.autograd.Function):
    """The loss, and a gradient of the states that has been computed."""

    @staticmethod
    def forward(ctx, states, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx, *of_loss):
        return *ctx.saved_tensors, None, None
