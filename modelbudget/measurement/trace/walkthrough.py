"""What the page shows of a small model next to its module: shapes, a real size, torch's own."""

from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.measurement.build import build
from modelbudget.measurement.reference.torch_layers import torch_layers
from modelbudget.measurement.trace.shapes import shapes

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
