"""The third witness: the class of transformers beside our own module, counted in the same way.

Classes are built on `meta`, from a config, by the code of the installed package: no weights, no
values, nothing fetched, no code of a model page.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.translate import config_of
from modelbudget.measure.count import count


class Witness(NamedTuple):
    """What a class holds: unique parameters, and buffers beside them."""

    parameters: int
    buffers: int


def build(name: str, config: dict[str, Any]) -> nn.Module:
    """The class `name` under a config, on meta. Raises ValueError where it refuses the config."""
    kind = getattr(transformers, name)
    with torch.device("meta"):
        return kind(kind.config_class(**config))


def witness(name: str, a) -> Witness:
    """Count the class `name` for the architecture `a`."""
    model = build(name, config_of(name, a))
    return Witness(
        parameters=sum(c.parameters for c in count(model).values()),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
    )
