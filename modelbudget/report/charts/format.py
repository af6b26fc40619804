"""Numbers, units and fields as text."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from modelbudget.architecture.counting_conventions import CONVENTIONS
from modelbudget.architecture.run_config import RunConfig
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

_PREFIXES = tuple((prefix, 3 * (i + 1)) for i, prefix in reversed([*enumerate("kMGTPEZY")]))
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case, and nothing else changed."""
    return text[:1].upper() + text[1:]


def count(value: int) -> str:
    """Format with thousands separators: 540356474880 → 540,356,474,880."""
    return f"{value:,}"


def signed(difference: int) -> str:
    """Format a difference with its sign: +1,024 or −512."""
    return f"{'−' if difference < 0 else '+'}{abs(difference):,}"


def scientific(value: int) -> str:
    """Format with three digits and a power of ten: 3283456000000000000000000 → 3.28 × 10²⁴."""
    digits, power = f"{value:.2e}".split("e+")
    return f"{digits} × 10{str(int(power)).translate(_RAISED)}"


def si_bytes(value: int) -> str:
    """Format bytes with SI units and three digits: 141000000000 → 141 GB, 2798123 → 2.8 MB."""
    return _si(value, "B") if value >= 1000 else f"{value:g} bytes"


def si_flops(value: int) -> str:
    """Format FLOPs with SI units and three digits: 291648307200 → 292 GFLOP; exact below 10⁶."""
    return _si(value, "FLOP") if value >= 10**6 else f"{value:,.10g} FLOP"


def _si(value: int, unit: str) -> str:
    prefix, power = next((p, n) for p, n in _PREFIXES if value >= 10**n)
    return f"{float(f'{value / 10**power:.3g}'):,.10g} {prefix}{unit}"


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


def each(n_bytes: int, n: int) -> str:
    """Format bytes a parameter: one digit after the point, or two below one byte."""
    value = n_bytes / n
    return "0" if value < 0.005 else f"{value:.{1 if value >= 1 else 2}f}".removesuffix(".0")


def times(ratio: float) -> str:
    """Format a ratio with three digits: 1055251.5 → 1,060,000 ×, 1.176 → 1.18 ×.

    Near 1 it has as many more as distinguish it: 1.00042 → 1.0004 ×.
    """
    rounded = (float(f"{ratio:.{digits}g}") for digits in range(3, 11))
    return f"{next((value for value in rounded if value != 1), 1.0):,.10g} ×"


def percent(share: float) -> str:
    """Format a share with enough digits to distinguish it from 0 % and from 100 %."""
    hundredths = 100 * share
    if 0 < hundredths < 0.01:
        return "< 0.01 %"
    if 99.99 < hundredths < 100:
        return "> 99.99 %"
    digits = 2 if hundredths < 1 or 99.9 < hundredths < 100 else 1
    return "100 %" if share == 1 else "0 %" if share == 0 else f"{hundredths:.{digits}f} %"


def signed_percent(share: float) -> str:
    """Format a relative difference: +3.4 %, −0.02 %, or < 0.01 % for both signs."""
    text = percent(abs(share))
    return text if text.startswith("<") else f"{'−' if share < 0 else '+'}{text}"


def value_of(field: str, value) -> str:
    """Format one value of a field for a title: `n_vocab = 50,257`, `tied`, `not tied`."""
    if isinstance(value, bool):
        return field if value else f"not {field}"
    return f"{field} = {count(value) if isinstance(value, int) else value}"


def shapes(of: list[list[int]]) -> str:
    """Format shapes, equal ones once with their number: `3 of 2 × 1 × 3 × 5`."""
    numbers = Counter(" × ".join(map(count, shape)) for shape in of)
    return ", ".join(f"{n} of {shape}" if n > 1 else shape for shape, n in numbers.items())


def field_title(field: str) -> str:
    """Return the field with the first clause of its description: `n_layer: layers`.

    A single word before a colon is skipped: it names the component that needs the field.
    """
    for record in (*families().values(), RunConfig):
        info = record.model_fields.get(field)
        if info is not None and info.description:
            clauses = info.description.split(": ")
            clause = next((clause for clause in clauses if " " in clause), clauses[0])
            return f"{field}: {re.split(r'[,;(]', clause)[0].strip()}"
    return field


def short(value: int) -> str:
    """Format with three digits and a letter: 540356474880 → 540B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        if value >= 10**power:
            return f"{float(f'{value / 10**power:.3g}'):g}{letter}"
    return str(value)


def in_full(value: int) -> str:
    """Format as `short`, with a word in place of the letter: 540356474880 → 540 billion."""
    words = {"T": " trillion", "B": " billion", "M": " million", "K": " thousand"}
    text = short(value)
    return text[:-1] + words[text[-1]] if text[-1] in words else text


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
