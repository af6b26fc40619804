"""Layer patterns: which part each layer uses, as a repeating list.

`mlps: mlp moe` gives every second layer experts. A pattern is text, so that every reading of a
formula can take it apart.
"""

from typing import Annotated

from pydantic import AfterValidator

from modelbudget.architecture.operations import ceil_div
from modelbudget.common.suggestions import did_you_mean


def pattern(*allowed: str):
    """Return the type of a layer-pattern field: allowed words, separated by spaces."""

    def check(text: str) -> str:
        words = text.split()
        wrong = [word for word in words if word not in allowed]
        if wrong or not words:
            hints = "".join(did_you_mean(word, allowed) for word in wrong)
            raise ValueError(
                f"must be words separated by spaces, one for each layer, repeated; "
                f"allowed: {', '.join(allowed)}{hints}"
            )
        return " ".join(words)

    return Annotated[str, AfterValidator(check)]


def instances(words: str, n_layer) -> dict:
    """Count the layers that use each word of a repeated pattern.

    Of a pattern of p words, the i-th (from 0) is used by ⌈(n_layer − i) / p⌉ of n_layer layers.
    """
    found: dict = {}
    period = len(words.split())
    for i, word in enumerate(words.split()):
        found[word] = found.get(word, 0) + ceil_div(n_layer - i, period)
    return found
