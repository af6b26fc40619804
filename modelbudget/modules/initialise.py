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


@contextmanager
def uninitialised():
    """Torch's modules allocate inside this context, but draw no random numbers.

    Counting needs no values, and drawing them is where the time of building goes: most of it on
    the meta device, all of it for large models on a real one.
    """
    with ExitStack() as stack:
        for class_ in _INITIALISING:
            stack.enter_context(patch.object(class_, "reset_parameters", lambda self: None))
        yield


def initialise(model: nn.Module) -> None:
    """Give every parameter the initial value that its module documents."""
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
