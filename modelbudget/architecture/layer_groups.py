"""Layers that are alike, and where they stand."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from modelbudget.architecture.operations import ceil_div, largest, positive


class LayerGroup(NamedTuple):
    """Layers that are alike: what follows attention, if that has a window (1), where they stand."""

    second: str
    local: Any
    is_there: Any
    first: Any
    last: Any
    before: Callable
    """How many of them stand before a place."""


def layer_groups(a, mixers: tuple[str, ...] = ("attention",)) -> Iterator[LayerGroup]:
    """The dense layers at the beginning, and those of the pattern that follows; `mixers`: a pattern
    of its own, over all layers.
    """
    dense, words = a.n_dense_layer, a.mlps.split()
    local = [int(word == "local") for word in mixers]
    for i, is_local in enumerate(local):
        yield _every(len(local), "mlp", is_local, i, 0, dense)
    period = math.lcm(len(words), len(local))
    for i in range(period):
        is_local = local[0] if len(local) == 1 else _at(local, dense + i)
        yield _every(period, words[i % len(words)], is_local, i, dense, a.n_layer)


def _at(values: list[int], place):
    """Which of some values that repeat stands at a place."""
    n = len(values)
    rest = place - n * ceil_div(place + 1 - n, n)
    return sum(value * _is_zero(rest - i) for i, value in enumerate(values))


def _is_zero(x):
    return 1 - positive(x) - positive(-x)


def _every(period: int, second: str, local, i: int, start, end) -> LayerGroup:
    """One layer in so many, the i-th and those that follow it, from one place up to another."""

    def before(place):
        inside = largest(place - start, 0) - largest(place - end, 0)
        return ceil_div(inside - i, period)

    last = start + i + period * (before(end) - 1)
    return LayerGroup(second, local, positive(end - start - i), start + i, last, before)
