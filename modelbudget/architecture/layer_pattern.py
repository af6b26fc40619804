"""Layers that differ: which part stands in which layer, as words that repeat.

`mlps: mlp experts` puts experts into every second layer. A pattern is text, so that every reading
of a formula can take it apart.
"""

from typing import Annotated

from pydantic import AfterValidator

from modelbudget.architecture.operations import ceil_div


def pattern(*allowed: str):
    """The type of a field that holds some of the allowed words, with spaces between them."""

    def check(text: str) -> str:
        words = text.split()
        wrong = [word for word in words if word not in allowed]
        if wrong or not words:
            raise ValueError(
                f"must be words with spaces between them, one for each layer, repeated; "
                f"allowed: {', '.join(allowed)}"
            )
        return " ".join(words)

    return Annotated[str, AfterValidator(check)]


def instances(words: str, n_layer) -> dict:
    """How many of n_layer layers hold each word, when the words repeat: of p words the i-th (from
    0) stands in ⌈(n_layer − i) / p⌉ layers.
    """
    found: dict = {}
    period = len(words.split())
    for i, word in enumerate(words.split()):
        found[word] = found.get(word, 0) + ceil_div(n_layer - i, period)
    return found
