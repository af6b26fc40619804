"""Linear layers that read the same states, as one."""

from collections.abc import Sequence

import torch
from torch import nn


def joined_linear(parts: Sequence[nn.Linear]) -> nn.Linear:
    """Return a linear layer whose outputs are those of all parts, in order.

    Raises ValueError if not all of them have a bias and not none.
    """
    biases = [part.bias for part in parts if part.bias is not None]
    if len(biases) not in (0, len(parts)):
        raise ValueError("linear layers cannot be one: only some of them have a bias")
    width = sum(part.out_features for part in parts)
    joined = nn.Linear(parts[0].in_features, width, bool(biases), device="meta")
    joined.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
    if biases:
        joined.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]))
    return joined


def put_gate_up(module: nn.Module, gate_up: nn.Module) -> None:
    """Register the layer of gate and up in one where `gate` was, and remove both.

    The optimizer sees parameters in this order.
    """
    children = dict(module.named_children())
    for child in children:
        delattr(module, child)
    for child, part in children.items():
        if child == "gate":
            module.gate_up = gate_up
        if child not in ("gate", "up"):
            setattr(module, child, part)
