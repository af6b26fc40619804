"""Construction of `transformers` classes, on the current default device and dtype.

Importing this module imports transformers, which takes seconds.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from modelbudget.huggingface.offline import refusals, transformers

_DROPOUT = re.compile(r"\w*(drop|dropout|pdrop|dropout_prob|dropout_rate|drop_rate)")
"""Keys of probabilities. That of dropping whole layers (`layerdrop`) is a control flow that differs
from step to step.
"""
_LAYERDROP = re.compile(r"\w*layer_?drop(_rate)?")
PROBABILITY = 0.1


def import_class(class_name: str) -> None:
    """Import the code of a class, which takes a second in each process that has not.

    What fails here fails again where the class is built, which says so.
    """
    with suppress(Exception):
        getattr(transformers, class_name)


def config_object(class_name: str, config: dict[str, Any]) -> Any:
    """Return the config object of a class. Raises ValueError if the class rejects the keys."""
    with refusals(class_name):
        return getattr(transformers, class_name).config_class(**config)


def construct(class_name: str, config: Any) -> nn.Module:
    """Build the class from a config object. Raises ValueError if the class rejects it."""
    with refusals(class_name):
        model = getattr(transformers, class_name)(config)
    _move_to_default_device(model)
    return model


def set_dropout(class_name: str, config: Any, on: bool) -> None:
    """Set all probabilities of dropout in a config and in its nested configs.

    Their value affects no size. Raises ValueError if the class has none and dropout is `on`.
    """
    has_rate = False
    for part in _parts(config):
        for key, value in vars(part).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                # Past the checks of config classes, one of which takes no float here (MPT).
                if _LAYERDROP.fullmatch(key):
                    object.__setattr__(part, key, 0.0)
                elif _DROPOUT.fullmatch(key):
                    object.__setattr__(part, key, PROBABILITY * on)
                    has_rate = True
    if on and not has_rate:
        raise ValueError(
            f"dropout = true: the config of {class_name} has no dropout; allowed: false"
        )


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for part in vars(config).values():
        if isinstance(part, transformers.PreTrainedConfig):
            yield from _parts(part)


def _move_to_default_device(model: nn.Module) -> None:
    """Move parameters to the default device and dtype, which `torch.FloatTensor` (XLNet) ignores.

    Tied parameters stay tied.
    """
    device, moved = torch.get_default_device(), {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.device != device:
                if parameter not in moved:
                    empty = torch.empty_like(
                        parameter, device=device, dtype=torch.get_default_dtype()
                    )
                    moved[parameter] = nn.Parameter(empty, parameter.requires_grad)
                module._parameters[name] = moved[parameter]
