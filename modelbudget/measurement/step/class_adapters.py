"""Adapters around the linear layers of a class of `transformers`, as PEFT adds them."""

from typing import Any

from torch import nn

from modelbudget.architecture.adapter_methods import ALL_BUT_EXPERTS, ALL_LINEAR, method_of
from modelbudget.architecture.run_adapter import NAMES_OF_CLASSES
from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.adapters import CONV1D, adapt_layers, cast_to_float32, refuse_none
from modelbudget.modules.weight_formats import Stored


def adapt_class(model: Any, run: RunConfig) -> None:
    """Freeze a class, and add the adapter of a run to its linear layers, once.

    all-linear are all but the head of the vocabulary (tuners/tuners_utils.py,
    `_maybe_include_all_linear_layers`). Raises ValueError if no layer is a target, or its matrix is
    one that the method does not take.
    """
    if getattr(model, "is_adapted", False):
        return
    vars(model)["is_adapted"] = True
    model.requires_grad_(False)
    if run.input_gradient:
        model.enable_input_require_grads()
    if run.prepare_for_kbit_training:
        cast_to_float32(model)
    head = model.get_output_embeddings()
    layers = {
        path: part
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear | Stored) or type(part).__name__ == CONV1D
        if part is not head and _is_target(run, path.rpartition(".")[2])
    }
    refuse_none(layers, run)
    has_conv1d = any(type(part).__name__ == CONV1D for part in layers.values())
    if has_conv1d and method_of(run.adapter).forward != "low_rank":
        raise ValueError(f"adapter: {run.adapter}: around {CONV1D}; allowed: lora")
    adapt_layers(model, run, layers)


def _is_target(run: RunConfig, name: str) -> bool:
    targets = {*run.adapter_targets.split()}
    return bool({ALL_LINEAR, ALL_BUT_EXPERTS, name, NAMES_OF_CLASSES.get(name)} & targets)
