"""The loss of a training step, as its run computes it."""

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.step import transformers_step, user_module
from modelbudget.measurement.step.operations_of_step import is_transformers_class
from modelbudget.modules import chunked_loss, fused_linear_loss, in_place_loss
from modelbudget.modules.decoder import DecoderModel

NO_TARGET = -100
"""The label that torch's cross-entropy ignores."""


def forward(
    model: nn.Module, run: RunConfig, tokens: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, Any]:
    """Return the loss, and what the run keeps of the outputs through the backward pass.

    Classes of `transformers` compute their loss from the labels themselves, and so does a user's
    own module whose `forward` takes them.
    """
    if is_transformers_class(model):
        return transformers_step.loss_of(model, tokens, labels), None
    if user_module.takes_targets(model):
        loss, outputs = user_module.loss_and_outputs(model, tokens, labels)
        return loss, outputs if run.outputs == "kept" else None
    if getattr(model, "head", True) is None:
        raise ValueError("lm_head = false: a model without logits has no loss")
    if isinstance(model, DecoderModel) and model.mtp:
        return _of_all_tokens(model, run, tokens, labels), None
    if run.loss_chunks > 1:
        return chunked_loss.loss_of(cast(DecoderModel, model), run, tokens, labels), None
    if run.loss_kernel == "fused_linear":
        return fused_linear_loss.loss_of(model, tokens, labels), None
    # A model that shifts the labels computes its loss itself, and holds the states until then. The
    # head saves them, too, unless it reads a cast of them.
    casts = run.autocast != "none"
    if run.targets == "shifted" and casts and isinstance(model, DecoderModel):
        states = model.states(tokens)
        logits = model.head(states)
    else:
        logits = user_module.logits_of(model(tokens))
    return loss_of(logits, labels, run), logits if run.outputs == "kept" else None


def _of_all_tokens(
    model: DecoderModel, run: RunConfig, tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Add up the losses of all tokens that a model predicts, the next and those further ahead.

    DeepSeek-AI 2024 (DeepSeek-V3), eq. 25, with a weight of 1.
    """
    logits = model.logits_ahead(tokens)
    first, *others = (
        loss_of(of_token, labels.roll(-n, 1) if n else labels, run)
        for n, of_token in enumerate(logits)
    )
    return sum(others, start=first)


def loss_of(logits: torch.Tensor, labels: torch.Tensor, run: RunConfig) -> torch.Tensor:
    """Compute the mean cross-entropy of logits (batch, length, n_vocab) and labels (batch, length).

    Labels are the targets, or the input tokens, of which a shifted copy is the targets.
    """
    if run.loss_kernel == "in_place":
        return in_place_loss.loss_of(logits, labels, run.loss_dtype == "float32")
    if run.loss_dtype == "float32":
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if run.targets == "given":
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    padded = F.pad(labels, (0, 1), value=NO_TARGET)
    shifted = padded[:, 1:].contiguous()
    summed = F.cross_entropy(logits.flatten(0, 1), shifted.flatten(), reduction="sum")
    return summed / labels.numel()
