"""Layers that are alike, and where they stand."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from modelbudget.operations import ceil_div, largest, positive


class Kind(NamedTuple):
    """Layers that are alike: what follows attention, if that has a window (1), where they stand."""

    second: str
    local: Any
    is_there: Any
    first: Any
    last: Any
    before: Callable
    """How many of them stand before a place."""


def kinds_of_layers(a, mixers: tuple[str, ...] = ("attention",)) -> Iterator[Kind]:
    """The dense layers at the beginning, and those of the pattern that follows; `mixers`: a pattern
    of its own, over all layers.
    """
    dense, words = a.n_dense_layer, a.mlps.split()
    local = [int(word == "local") for word in mixers]
    for i, is_local in enumerate(local):
        yield _every(len(local), "mlp", is_local, i, 0, dense)
    period = math.lcm(len(words), len(local))
    for i in range(period):
        is_local = sum(
            word * (1 - positive(_rest(dense + i - j, len(local)))) for j, word in enumerate(local)
        )
        yield _every(period, words[i % len(words)], is_local, i, dense, a.n_layer)


def _every(period: int, second: str, local, i: int, start, end) -> Kind:
    """One layer in so many, the i-th and those that follow it, from one place up to another."""

    def before(place):
        inside = largest(place - start, 0) - largest(place - end, 0)
        return ceil_div(inside - i, period)

    last = start + i + period * (before(end) - 1)
    return Kind(second, local, positive(end - start - i), start + i, last, before)


def _rest(x, y: int):
    return x - y * (x // y)
