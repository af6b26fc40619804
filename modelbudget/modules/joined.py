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


def put_in_place(module: nn.Module, parts: Sequence[str], name: str, joined: nn.Module) -> None:
    """Register `joined` as `name` where the first of some parts of a module was; remove these.

    The optimizer sees parameters in this order.
    """
    children = dict(module.named_children())
    for child in children:
        delattr(module, child)
    for child, part in children.items():
        if child == parts[0]:
            setattr(module, name, joined)
        if child not in parts:
            setattr(module, child, part)
