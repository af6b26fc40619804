"""Building without initial values, and filling them in afterwards."""

from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import nn

_INITIALISING = [
    class_
    for class_ in vars(nn).values()
    if isinstance(class_, type) and "reset_parameters" in vars(class_)
]
_RANDOM = [
    name for name in vars(nn.init) if name.endswith(("normal_", "uniform_")) and name[0] != "_"
]
"""Functions of torch.nn.init, which classes of transformers call where they build (GPT-2)."""


@contextmanager
def uninitialised():
    """Torch's modules allocate inside this context, but draw no random numbers.

    Counting needs no values, and drawing them is where the time of building goes: most of it on
    the meta device, all of it for large models on a real one.
    """
    with ExitStack() as stack:
        for class_ in _INITIALISING:
            stack.enter_context(patch.object(class_, "reset_parameters", lambda self: None))
        for name in _RANDOM:
            stack.enter_context(patch.object(nn.init, name, lambda tensor, *_, **__: tensor))
        yield


def initialise(model: nn.Module) -> None:
    """Fill torch's own modules as they do, all others with small random numbers and biases of 0.

    No quantity depends on them, but what computes must not meet what is left in memory.
    """
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                nn.init.zeros_(parameter)
            elif parameter.is_floating_point() and parameter.element_size() > 1:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
