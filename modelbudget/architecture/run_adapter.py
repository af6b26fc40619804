"""What a run trains: all parameters, some of them, or an adapter of frozen ones."""

from collections.abc import Collection
from typing import ClassVar, Literal

from modelbudget.architecture.adapter_methods import (
    ALL_BUT_EXPERTS,
    ALL_LINEAR,
    EXPERTS,
    METHODS,
    OF_LAYERS,
    OF_MODEL,
    ROUTER,
    reaches_experts,
)
from modelbudget.architecture.constraint import Check
from modelbudget.architecture.layer_pattern import names_among
from modelbudget.architecture.record import Count, Record, Size
from modelbudget.architecture.run_rules import rules

TARGETS = (ALL_LINEAR, *METHODS.targets, EXPERTS, ROUTER, ALL_BUT_EXPERTS)
NAMES_OF_LLAMA = METHODS.names_of_llama
NAMES_OF_CLASSES = NAMES_OF_LLAMA | METHODS.names_of_classes
"""Names of modules that PEFT has → targets here."""
OF_MLP = ("gate", "up", "down", "gate_up")
"""Layers of an MLP that stacked experts have, too."""
PARTS = ("all", "embedding", "head", "norms", "biases", "attention", "mlp")
"""Parts of a model that can be trained, next to an adapter or alone."""
MODULES = {"embedding.token": "embedding", "head": "head"}
SAVED = ("none", *MODULES.values(), "norms")
OF_ADAPTER = (
    "adapter_rank", "adapter_block", "adapter_frequencies", "virtual_tokens", "adapter_targets",
    "adapter_dtype", "adapter_dropout",
)  # fmt: skip
"""Fields that say nothing of a run without an adapter; rank and targets do of served ones."""
OF_FROZEN = ("adapter", "trained", "trained_from_layer", "input_gradient")
"""Switches of a run of families whose programs say what is frozen."""
BITSANDBYTES = "bnb-4bit bnb-4bit-double bnb-8bit"


class Adapter(Record):
    """What is trained: all parameters, some of them, or an adapter of frozen ones."""

    adapter: Literal["none", *OF_LAYERS, *OF_MODEL] = "none"  # pyrefly: ignore[invalid-literal]
    adapter_rank: Count = 8
    adapter_block: Count = 32
    adapter_frequencies: Count = 1000
    virtual_tokens: Count = 20
    adapter_targets: names_among(*TARGETS, also=NAMES_OF_CLASSES) = ALL_LINEAR  # pyrefly: ignore[invalid-annotation]
    adapter_dtype: Literal["float32", "dtype"] = "float32"
    adapter_dropout: bool = False
    trained: names_among("default", *PARTS) = "default"  # pyrefly: ignore[invalid-annotation]
    trained_from_layer: Size = 0
    modules_to_save: names_among(*SAVED, also=NAMES_OF_CLASSES) = "none"  # pyrefly: ignore[invalid-annotation]
    prepare_for_kbit_training: bool = False
    input_gradient: bool = False

    constraints: ClassVar[tuple[Check, ...]] = (*rules("adapter"),)


def is_partial(r) -> bool:
    """Whether a run trains less than all parameters, or others than those of the model."""
    return r.adapter != "none" or r.trained != "default"


def is_part(name: str, component: str, is_bias: bool = False) -> bool:
    """Whether a part by its name (`PARTS`) has the parameters of a component."""
    names = component.split(".")
    match name:
        case "all":
            return True
        case "embedding" | "head":
            return names[0] == name
        case "norms":
            return any("norm" in part for part in names)
        case "biases":
            return is_bias
        case "mlp":
            return bool({"mlp", "moe"} & {*names}) and "norm" not in names
    return name in names and "norm" not in names


def is_target(r, component: str, layer: int | None, has_experts: bool) -> bool:
    """Whether a linear layer gets an adapter, by its component and the number of its layer.

    Where all-linear reaches stacked experts, PEFT adapts these in place of dense layers and of
    shared experts (_convert_peft_config_moe of utils/transformers_weight_conversion.py).
    """
    if layer is not None and layer < r.trained_from_layer:
        return False
    targets = r.adapter_targets.split()
    if ALL_LINEAR in targets and has_experts and reaches_experts(r):
        return not _is_of_mlp(component) or is_named(targets, component)
    return ALL_LINEAR in targets or is_named(targets, component)


def is_named(targets: Collection[str], component: str) -> bool:
    """Whether targets other than all-linear name a linear layer, by its component."""
    *parts, name = component.split(".")
    if ALL_BUT_EXPERTS in targets:
        return True
    if name == "output" and {*METHODS.mixers_without_queries} & {*parts}:
        return False
    return name in targets and (name not in OF_MLP or _is_of_mlp(component))


def _is_of_mlp(component: str) -> bool:
    return component.rpartition(".")[2] in OF_MLP and is_part("mlp", component)


def trains(r, component: str, layer: int | None, is_bias: bool) -> bool:
    """Whether a run trains a parameter of the model itself, which is not an adapter's.

    `layer`: its number, None outside of the layers; those before `trained_from_layer` are frozen.
    """
    if r.trained_from_layer and (
        layer < r.trained_from_layer if layer is not None else component.startswith("embedding")
    ):
        return False
    if r.trained == "default":
        return r.adapter == "none"
    return any(is_part(name, component, is_bias) for name in r.trained.split())


def copies(r, component: str) -> bool:
    """Whether a copy of the parameters of a component is trained next to them.

    By PEFT's names of modules, of which embed_tokens has no positions, and lm_head no projection.
    """
    names = r.modules_to_save.split()
    is_norm = "norms" in names and is_part("norms", component)
    return r.adapter != "none" and (is_norm or MODULES.get(component) in names)
