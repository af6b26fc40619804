"""Constraints between a decoder's patterns and the sizes of its parts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers


def constraints_of_parts() -> Iterator[Check]:
    """Yield the constraints of all parts.

    The sizes of a part are set where a pattern names the part, and only there. Then come the part's
    own constraints.
    """
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for name, one in parts.items():
            present = f"'{name}' in {field}"
            for size in one.SIZES:
                missing = f"{size} = 0: {name} in {field} needs at least 1"
                yield Constraint(size, missing, when=present)
                yield Constraint(present, f"{size} = {{{size}}} needs {name} in {field}", when=size)
            yield from getattr(one, "CONSTRAINTS", ())


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
