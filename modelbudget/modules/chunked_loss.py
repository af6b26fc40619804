"""Head and loss in chunks of the tokens, with the gradients of each chunk at once.

The method of torchtitan's `ChunkedLossWrapper` (components/loss.py). A head of which devices have
shards stays gathered from the first chunk to the last, after which its gradients are reduced.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast
from unittest.mock import patch

import torch
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.decoder import DecoderModel

Chunk = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""States of some tokens, where their gradient goes, and targets."""


def loss_of(
    model: DecoderModel, run: RunConfig, tokens: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Compute the mean cross-entropy of tokens and targets (batch, length), in `loss_chunks` parts.

    The gradients of the head are there afterwards. That of the states, gathered in at least
    float32, is what the backward pass of the loss begins with.
    """
    with patch.object(model, "forward", model.states):
        states = model(tokens)  # with the hooks of FSDP2
    gathered = torch.zeros_like(states, dtype=torch.promote_types(states.dtype, torch.float32))
    loss, logits = gathered.new_zeros(()), None
    xs, gradients = (
        of_chunk.detach().flatten(0, 1).chunk(run.loss_chunks) for of_chunk in (states, gathered)
    )
    chunks = [*zip(xs, gradients, targets.flatten().chunk(run.loss_chunks), strict=True)]
    del xs, gradients
    for x, gradient, labels in _with_gathered(model.head, chunks):
        logits = model.head(x.requires_grad_())
        of_chunk, logits = _sum_of(logits, labels, run), logits if run.outputs == "kept" else None
        of_chunk = of_chunk / targets.numel()
        of_chunk.backward()
        gradient.copy_(cast(torch.Tensor, x.grad))
        x.grad = None
        loss = loss + of_chunk.detach()
    return _GivenGradient.apply(states, gathered.to(states.dtype), loss)


def _with_gathered(head: Any, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks, during which the head stays gathered; the last reduces its gradients."""
    if not hasattr(head, "unshard"):  # an FSDPModule, whose import takes long
        yield from chunks
        return
    head.set_reshard_after_forward(False)
    head.set_reshard_after_backward(False)
    head.set_requires_gradient_sync(False, recurse=False)
    head.unshard()
    yield from chunks[:-1]
    head.set_requires_gradient_sync(True, recurse=False)
    yield chunks[-1]
    head.set_reshard_after_forward(True)
    head.set_reshard_after_backward(True)
    head.reshard()


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
