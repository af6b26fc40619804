"""Quantities, fields and layouts in words."""

from collections.abc import Mapping
from typing import Any

from modelbudget.architecture.counting_conventions import CONVENTIONS
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.number_format import count, short, si_bytes, si_flops
from modelbudget.common.validation_messages import first_clause
from modelbudget.families import families

UNITS = {
    "parameters": "parameters",
    "parameter_bytes": "bytes of parameters",
    "file_bytes": "bytes of a file's tensors",
    "gradient_bytes": "bytes of gradients",
    "optimizer_bytes": "bytes of optimizer state",
    "activation_bytes": "bytes of activations",
    "peak_training_bytes": "bytes of peak training memory",
    "bytes_at_peak": "bytes at the peak of training",
    "peak_requested_bytes": "bytes of peak requested memory",
    "peak_allocated_bytes": "bytes of peak allocated memory",
    "peak_reserved_bytes": "bytes of peak reserved memory",
    "workspace_bytes": "bytes of library workspace",
    "context_bytes": "bytes of driver context",
    "cache_bytes": "bytes of KV cache or state",
    "request_bytes": "bytes of the cache of one request",
    "peak_inference_bytes": "bytes of peak inference memory",
    "flops_forward": "FLOPs of the forward pass",
    "flops_backward": "FLOPs of the backward pass",
    "flops_decode": "FLOPs per decoded token",
    "unsupported_ops": "calls without a FLOP formula",
} | {one.name: f"{one.unit} by the convention {one.name}" for one in CONVENTIONS}
"""Quantity → unit and what is counted, for axis titles and after a number."""


def amount(value: int, quantity: str) -> str:
    """Format a value for people, with what it is: `8.03B parameters`, `409 MB of activations`."""
    unit = UNITS[quantity]
    for word, text in (("bytes", si_bytes), ("FLOPs", si_flops)):
        if unit.startswith(word):
            return text(value) + unit.removeprefix(word)
    return f"{short(value)} {unit}"


def brief(value: int, quantity: str) -> str:
    """Format a value for people, without what it is: `8.03B`, `409 MB`; exact below a million."""
    unit = UNITS[quantity]
    if unit.startswith("bytes"):
        return si_bytes(value)
    if unit.startswith("FLOPs"):
        return si_flops(value)
    return short(value) if value >= 10**6 else count(value)


def value_of(field: str, value) -> str:
    """Format one value of a field for a title: `n_vocab = 50,257`, `tied`, `not tied`."""
    if isinstance(value, bool):
        return field if value else f"not {field}"
    return f"{field} = {count(value) if isinstance(value, int) else value}"


def field_title(field: str) -> str:
    """Return the field with the first clause of its description: `n_layer: layers`."""
    for record in (*families().values(), RunConfig):
        info = record.model_fields.get(field)
        if info is not None and info.description:
            return f"{field}: {first_clause(info.description)}"
    return field


def in_words(layout: Mapping[str, Any]) -> str:
    """Describe a layout: `data 8 × tensor 8, sequence parallel, zero 3`."""
    sizes = [
        f"{name} {layout[f'{name}_parallel']:,}"
        for name in ("data", "tensor", "context", "expert", "pipeline")
        if layout[f"{name}_parallel"] > 1
    ]
    parts = [" × ".join(sizes) or "one device"]
    parts += ["sequence parallel"] if layout["sequence_parallel"] else []
    parts += [f"zero {layout['zero']}"] if layout["zero"] else []
    if layout["pipeline_schedule"] != "none":
        parts.append(f"{layout['pipeline_schedule']} of {layout['n_microbatch']:,}")
    if layout["virtual_stages"] > 1:
        parts.append(f"{layout['virtual_stages']:,} stages on each")
    return ", ".join(parts)
