"""What the page shows of a small model next to its module: shapes, a real size, torch's own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.measurement.build import build, input_of

REAL = {"n_vocab": 50_000, "d_model": 2_048, "d_ff": 8_192, "n_head": 16, "n_kv_head": 16,
        "d_head": 128}  # fmt: skip
"""The sizes of a language model of about a billion parameters."""


def walkthrough(architecture: Architecture) -> dict[str, Any]:
    """Return shapes of a forward pass, the parameters at a real size, and torch's modules."""
    real = _at_a_real_size(architecture)
    return {
        "shapes": shapes(build(architecture, "meta", "float32")),
        "real": {
            "fields": {name: value for name, value in REAL.items() if hasattr(real, name)},
            "parameters": sum(
                parameter.numel() for parameter in build(real, "meta", "float32").parameters()
            ),
        },
        "torch": torch_layers(architecture),
    }


def _at_a_real_size(architecture: Architecture) -> Architecture:
    fields = architecture.model_dump()
    return type(architecture)(**(fields | {k: v for k, v in REAL.items() if k in fields}))


PLAIN = {
    "norm": "layernorm", "norm_scale": True, "query_bias": True, "key_bias": True,
    "value_bias": True, "output_bias": True, "qk_norm": "none", "sinks": False,
    "attention_gate": False, "gated": False, "up_bias": True, "down_bias": True,
    "parallel": False,
}  # fmt: skip
"""Fields in which our attention and layer are like torch's."""


class Variant(NamedTuple):
    """One of torch's modules, its arguments next to d_model and n_head, and why it differs."""

    make: Callable[..., nn.Module]
    arguments: dict[str, Any]
    why: str


OF_ATTENTION = [
    Variant(
        nn.MultiheadAttention, {},
        "Query, key and value are one matrix, in_proj_weight, and one bias",
    ),
    Variant(
        nn.MultiheadAttention, {"bias": False},
        "No bias in any of the four projections; torch cannot drop that of one alone",
    ),
    Variant(
        nn.MultiheadAttention, {"add_bias_kv": True},
        "One more key and one more value, learned and appended to those of the tokens",
    ),
]  # fmt: skip
D_FF = {"dim_feedforward": "d_ff"}
"""An argument that is a field of ours."""
OF_LAYER = [
    Variant(
        nn.TransformerEncoderLayer, D_FF,
        "By default norms come after the residual sums (norm_first=False), the activation function "
        "is ReLU and dropout is 0.1; none of these has parameters",
    ),
    Variant(
        nn.TransformerEncoderLayer, {},
        "dim_feedforward is 2,048 by default, whatever d_model is",
    ),
    Variant(
        nn.TransformerEncoderLayer, D_FF | {"bias": False},
        "No bias in projections and MLP, and none in the norms either",
    ),
    Variant(
        nn.TransformerDecoderLayer, D_FF,
        "Cross-attention and its norm, for the output of an encoder: a decoder without encoder is "
        "an encoder layer with a causal mask",
    ),
]  # fmt: skip
BY_FAMILY = {"attention": OF_ATTENTION, "layer": OF_LAYER}


def torch_layers(architecture: Any) -> list[dict]:
    """Return torch's modules of the same sizes; empty if ours has parts that torch's lack.

    Keys: call (how it is constructed), why (what differs), parameters, and tensors (name and shape
    of each).
    """
    a = architecture
    plain = all(getattr(a, name, value) == value for name, value in PLAIN.items())
    variants = BY_FAMILY.get(a.name(), [])
    if not variants or not plain or a.n_kv_head != a.n_head or a.n_head * a.d_head != a.d_model:
        return []
    return [_counted(variant, a) for variant in variants]


def _counted(variant: Variant, a: Any) -> dict:
    arguments = {
        name: getattr(a, value) if isinstance(value, str) else value
        for name, value in variant.arguments.items()
    }
    with torch.device("meta"):
        module = variant.make(a.d_model, a.n_head, **arguments)
    texts = (a.d_model, a.n_head, *(f"{name}={value}" for name, value in arguments.items()))
    return {
        "call": f"nn.{type(module).__name__}({', '.join(map(str, texts))})",
        "why": variant.why,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "tensors": [[name, list(tensor.shape)] for name, tensor in module.named_parameters()],
    }


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
        return input_of(model, BATCH, LENGTH)
    return torch.zeros(BATCH, LENGTH, first.shape[-1], device=first.device, dtype=first.dtype)
