"""Numbers and fields as a reader reads them."""

import re

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families import families

UNITS = {
    "parameters": "parameters",
    "parameter_bytes": "bytes of parameters",
    "gradient_bytes": "bytes of gradients",
    "optimizer_bytes": "bytes of optimizer states",
    "activation_bytes": "bytes kept for backward",
    "peak_training_bytes": "bytes at the worst moment of training",
    "peak_requested_bytes": "bytes requested at the worst moment",
    "peak_allocated_bytes": "bytes allocated at the worst moment",
    "peak_reserved_bytes": "bytes reserved at the worst moment",
    "workspace_bytes": "bytes of workspace",
    "context_bytes": "bytes of context",
    "cache_bytes": "bytes of cache",
    "peak_inference_bytes": "bytes at the worst moment of use",
    "flops_forward": "FLOPs of a forward pass",
    "flops_backward": "FLOPs of a backward pass",
    "flops_decode": "FLOPs of one more token",
    "unsupported_ops": "calls of operations that no counter knows",
}

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def count(value: int) -> str:
    """540356474880 → 540,356,474,880."""
    return f"{value:,}"


def scientific(value: int) -> str:
    """3283456000000000000000000 → 3.28 × 10²⁴."""
    digits, power = f"{value:.2e}".split("e+")
    return f"{digits} × 10{str(int(power)).translate(_RAISED)}"


def si_bytes(value: int) -> str:
    """As data sheets print it, in powers of ten: 141000000000 → 141 GB, 2798123 → 2.8 MB."""
    unit, power = next(
        (one for one in (("GB", 9), ("MB", 6), ("kB", 3)) if value >= 10 ** one[1]), ("bytes", 0)
    )
    return f"{float(f'{value / 10**power:.3g}'):,g} {unit}"


def percent(share: float) -> str:
    """A share with as many digits as tell it from nothing and from all."""
    hundredths = 100 * share
    if 0 < hundredths < 0.01:
        return "< 0.01 %"
    if 99.99 < hundredths < 100:
        return "> 99.99 %"
    digits = 2 if hundredths < 1 or 99.9 < hundredths < 100 else 1
    return "100 %" if share == 1 else "0 %" if share == 0 else f"{hundredths:.{digits}f} %"


def signed_percent(share: float) -> str:
    """A difference against the whole: +3.4 %, −0.02 %, < 0.01 % either way."""
    text = percent(abs(share))
    return text if text.startswith("<") else f"{'−' if share < 0 else '+'}{text}"


def value_of(field: str, value) -> str:
    """One value of a field, as a panel's title: `n_vocab = 50,257`, `tied`, `not tied`."""
    if isinstance(value, bool):
        return field if value else f"not {field}"
    return f"{field} = {count(value) if isinstance(value, int) else value}"


def field_title(field: str) -> str:
    """The field with the first words of its own description: `n_layer: layers`.

    Single words before a colon are left out: they name the part that needs the field.
    """
    for record in (*families().values(), RunConfig):
        info = record.model_fields.get(field)
        if info is not None and info.description:
            clauses = info.description.split(": ")
            clause = next((clause for clause in clauses if " " in clause), clauses[0])
            return f"{field}: {re.split(r'[,;(]', clause)[0].strip()}"
    return field


def short(value: int) -> str:
    """540356474880 → 540B: three digits, as people say it."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        if value >= 10**power:
            return f"{float(f'{value / 10**power:.3g}'):g}{letter}"
    return str(value)
