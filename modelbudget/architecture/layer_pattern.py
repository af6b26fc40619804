"""Layer patterns: which part each layer uses, as a repeating list.

`mlps: mlp moe` gives every second layer experts. A pattern is text, so that every reading of a
formula can take it apart.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.common.suggestions import did_you_mean, without_setting


def pattern(*allowed: str):
    """Return the type of a layer-pattern field: allowed names, separated by spaces."""
    return names_among(*allowed, are=", one for each layer, repeated")


def names_among(*allowed: str, also: Mapping[str, str] = MappingProxyType({}), are: str = ""):
    """Return the type of a field of allowed names, separated by spaces or commas.

    `also`: names elsewhere → those here; `are`: what the names are, in a message.
    """

    def check(text: str) -> str:
        names = text.replace(",", " ").split()
        chosen = [also.get(name, name) for name in names]
        wrong = [name for name in names if also.get(name, name) not in allowed]
        if wrong or not chosen:
            hints = "".join(
                f"; {name}: {answer}"
                if (answer := without_setting(name))
                else did_you_mean(name, allowed) or f"; unknown: {name}" * (len(names) > 1)
                for name in wrong
            )
            raise ValueError(
                f"must be names separated by spaces{are}; allowed: {', '.join(allowed)}{hints}"
            )
        return " ".join(chosen)

    return Annotated[str, AfterValidator(check)]


def instances(names: str, n_layer) -> dict:
    """Count the layers that use each name of a repeated pattern.

    Of a pattern of p names, the i-th (from 0) is used by ⌈(n_layer − i) / p⌉ of n_layer layers.
    """
    numbers: dict = {}
    period = len(names.split())
    for i, name in enumerate(names.split()):
        numbers[name] = numbers.get(name, 0) + ceil_div(n_layer - i, period)
    return numbers


def layers_from(a: Any, start: int, n_layer: int) -> Any:
    """Return a model with some consecutive layers of another, from the layer `start` on."""
    n_dense = a.n_dense_layer
    layers = {
        "n_layer": n_layer,
        "n_dense_layer": min(n_layer, max(0, n_dense - start)),
        "mixers": _pattern_from(a.mixers, start),
        "mlps": _pattern_from(a.mlps, max(0, start - n_dense)),
    }
    return a.model_copy(update=layers)


def _pattern_from(names: str, start: int) -> str:
    words = names.split()
    start %= len(words)
    return " ".join(words[start:] + words[:start])
