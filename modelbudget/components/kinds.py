"""Layers that are alike, and where they stand."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from modelbudget.operations import ceil_div, largest, positive


class Kind(NamedTuple):
    """Layers that are alike: what follows attention, and where they stand."""

    second: str
    is_there: Any
    first: Any
    last: Any
    before: Callable
    """How many of them stand before a place."""


def kinds_of_layers(a) -> Iterator[Kind]:
    """The dense layers at the beginning, and one kind for each word of the pattern."""
    dense, words = a.n_dense_layer, a.mlps.split()

    def dense_before(place):
        return place + dense - largest(place, dense)

    yield Kind("mlp", positive(dense), 0, dense - 1, dense_before)
    period = len(words)
    for i, word in enumerate(words):

        def before(place, i=i):
            return ceil_div(largest(place - dense, 0) - i, period)

        last = dense + i + period * (before(a.n_layer) - 1)
        yield Kind(word, positive(a.n_layer - dense - i), dense + i, last, before)
