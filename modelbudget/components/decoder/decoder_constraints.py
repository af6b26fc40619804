"""Constraints between a decoder's patterns and the sizes of its parts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.record_data import data_of
from modelbudget.architecture.run_rules import rules
from modelbudget.components.contract import Part
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers

PATTERNS = {"mixers": mixers(), "mlps": feed_forward()}


def constraints_of_parts() -> Iterator[Check]:
    for field, parts in PATTERNS.items():
        yield from constraints_of(field, parts)


def constraints_of_run() -> Iterator[Constraint]:
    for lacked, when, setting, allowed in (
        ("DIVIDED", "tensor_parallel > 1", "tensor_parallel = {tensor_parallel}", ""),
        (
            "FUSES_GRADIENTS",
            "gradient_accumulation_fusion and gradient_casts == 'accumulated'",
            "gradient_accumulation_fusion = true",
            "; allowed: gradient_accumulation_fusion: false",
        ),
    ):
        for field, parts in PATTERNS.items():
            for name in (name for name, file in parts.items() if not hasattr(file, lacked)):
                message = f"{setting}: not known yet with {name} in {field}{allowed}"
                yield Constraint(f"'{name}' not in {field}", message, when)
    yield from rules("decoder and run")


def constraints_of(field: str, parts: Mapping[str, Part]) -> Iterator[Check]:
    """Yield the constraints of the parts that a pattern may name.

    The sizes of a part are set where the pattern names the part, and only there. Then come the
    part's own constraints.
    """
    of_parts: dict[str, list[str]] = {}
    for name, component in parts.items():
        for size in component.SIZES:
            missing = f"{size} = 0: {name} in {field} needs at least 1"
            yield Constraint(size, missing, when=f"'{name}' in {field}")
            of_parts.setdefault(size, []).append(name)
        yield from getattr(component, "CONSTRAINTS", ())
        yield from data_of(name).constraints
    for size, names in of_parts.items():
        present = " or ".join(f"'{name}' in {field}" for name in names)
        needs = f"{size} = {{{size}}} needs {' or '.join(names)} in {field}"
        yield Constraint(present, needs, when=size)


def empty_layer(values: Mapping[str, Any]) -> str | None:
    """Name the first layer without mixer and feed-forward part.

    Not an expression: it compares two patterns layer by layer.
    """
    if "none" not in (mixers := values["mixers"].split()):
        return None
    if "none" not in (mlps := values["mlps"].split()):
        return None
    n_dense_layer, period = values["n_dense_layer"], math.lcm(len(mixers), len(mlps))
    for i in range(min(values["n_layer"] - n_dense_layer, period)):
        if mixers[(n_dense_layer + i) % len(mixers)] == mlps[i % len(mlps)] == "none":
            return f"layer {n_dense_layer + i + 1} is empty: none in mixers and in mlps"
    return None
