"""Training steps of a user's own torch module."""

import inspect
from collections.abc import Iterator, Mapping

import torch
from torch import nn

OF_LIBRARIES = ("modelbudget.", "torch.", "transformers.")
TARGETS = ("targets", "labels")
"""Names of the argument with targets in `forward`."""


def is_user_module(model: nn.Module) -> bool:
    """Whether the class of a model is neither ours nor one of torch or `transformers`."""
    return not type(model).__module__.startswith(OF_LIBRARIES)


def takes_targets(model: nn.Module) -> bool:
    """Whether the module computes its own loss."""
    return is_user_module(model) and _argument(model) is not None


def loss_and_outputs(
    model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the loss that the module computes, and its other outputs.

    Raises ValueError if no output is a tensor without dimensions.
    """
    outputs = list(_tensors(model(tokens, **{_argument(model) or "": targets})))
    losses = [output for output in outputs if output.dim() == 0]
    if not losses:
        raise ValueError(
            f"{type(model).__name__} returns no loss: no output of its forward with "
            f"{_argument(model)} is a tensor without dimensions"
        )
    return losses[0], [output for output in outputs if output is not losses[0]]


def logits_of(output) -> torch.Tensor:
    """Return the logits (batch, length, n_vocab) among the outputs. Raises ValueError if none."""
    logits = next((tensor for tensor in _tensors(output) if tensor.dim() == 3), None)
    if logits is None:
        raise ValueError("the module returns no logits (batch, length, n_vocab)")
    return logits


def _argument(model: nn.Module) -> str | None:
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in TARGETS if name in parameters), None)


def _tensors(output) -> Iterator[torch.Tensor]:
    if isinstance(output, Mapping):
        output = tuple(output.values())
    for item in output if isinstance(output, tuple | list) else (output,):
        if isinstance(item, torch.Tensor):
            yield item
