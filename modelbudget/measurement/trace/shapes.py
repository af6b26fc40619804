"""Shapes that go in and out of each module of a small model, in a forward pass on meta."""

from typing import Any

import torch
from torch import nn

BATCH, LENGTH = 2, 3
"""Sequences and tokens of the pass: different, and different from the sizes of most models."""


def shapes(model: nn.Module) -> list[dict]:
    """Return the shapes of every module that the forward pass calls, the model first.

    Keys: name (path; empty for the model), kind (class), inputs and outputs (lists of shapes). A
    model with an embedding gets token indices (batch, length), any other hidden states (batch,
    length, width) as wide as its first parameter.
    """
    entries: list[dict] = []
    handles = [
        handle
        for name, module in model.named_modules()
        for handle in _watched(module, name, entries)
    ]
    with torch.no_grad():
        model(_inputs(model))
    for handle in handles:
        handle.remove()
    return entries


def _watched(module: nn.Module, name: str, entries: list[dict]) -> tuple:
    open_entries: list[dict] = []  # of nested calls

    def enter(_, args, kwargs) -> None:
        entry = {"name": name, "kind": type(module).__name__}
        entry |= {"inputs": _shapes_of((*args, *kwargs.values())), "outputs": []}
        open_entries.append(entry)
        entries.append(entry)

    def leave(_, args, output) -> None:
        open_entries.pop()["outputs"] = _shapes_of(output)

    return (
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave),
    )


def _shapes_of(value: Any) -> list[list[int]]:
    if isinstance(value, torch.Tensor):
        return [list(value.shape)]
    if isinstance(value, tuple | list):
        return [shape for item in value for shape in _shapes_of(item)]
    return []


def _inputs(model: nn.Module) -> torch.Tensor:
    first = next(model.parameters())
    if any(isinstance(module, nn.Embedding) for module in model.modules()):
        return input_tokens(model, BATCH, LENGTH)
    return torch.zeros(BATCH, LENGTH, first.shape[-1], device=first.device, dtype=first.dtype)


def input_tokens(model: nn.Module, batch: int, length: int) -> torch.Tensor:
    """Return tokens (batch, length), or as many numbers for each as a model of our own reads."""
    of_token = getattr(model, "shape_of_token", ())
    device = next(model.parameters()).device
    return torch.zeros(batch, length, *of_token, dtype=torch.long, device=device)
