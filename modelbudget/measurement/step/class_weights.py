"""Quantised weights of a class of `transformers`, where the package itself converts its layers."""

from types import SimpleNamespace
from typing import Any

from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.modules.adapters import CONV1D
from modelbudget.modules.weight_formats import Stored, stored_layer


def quantise_class(model: Any, run: RunConfig) -> None:
    """Replace the linear layers that `from_pretrained` converts to the run's format, once.

    All but the head, tied layers, that of the last parameter, and those that the class keeps in
    float32 (quantizers/base.py, `get_modules_to_not_convert`). Raises ValueError if the format
    cannot store one of them.
    """
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    if any(isinstance(part, Stored) for part in model.modules()):
        return
    library, stored = FORMATS[run.weights].library, FORMATS[run.weights].format
    is_exact = library.quant_method == "bitsandbytes"  # integrations/bitsandbytes.py
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    for path, layer in list(model.named_modules()):
        if not should_convert_module(path, kept):
            continue
        if type(layer).__name__ == CONV1D and "conv1d" in library.converts:
            layer = SimpleNamespace(weight=layer.weight.T, bias=layer.bias)
        elif not isinstance(layer, nn.Linear) or (is_exact and type(layer) is not nn.Linear):
            continue
        if packed := stored_layer(path, layer, stored, run):
            model.set_submodule(path, packed)
