"""Groups of identical layers and their indices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.formula_arguments import Fields


class LayerGroup(NamedTuple):
    """Identical layers: the types of their mixer and feed-forward part, and their indices."""

    mixer: str
    feed_forward: str
    is_there: Any
    """1 where the model has such a layer."""
    first: Any
    last: Any
    before: Callable
    """The number of these layers with an index below a given one."""

    def at(self, index):
        """1 where the layer of that index is in the group."""
        return self.before(index + 1) - self.before(index)


def layer_groups(a: Fields) -> list[LayerGroup]:
    """Return the groups of identical layers of a model.

    The first n_dense_layer layers have an MLP; the layers after them follow the patterns.
    """
    dense, mixers, mlps = a.n_dense_layer, _period(a.mixers), _period(a.mlps)
    groups = [_every(len(mixers), mixer, "mlp", 1, i, 0, dense) for i, mixer in enumerate(mixers)]
    period = math.lcm(len(mixers), len(mlps))
    for i in range(period):
        for mixer in dict.fromkeys(mixers):
            chosen = _is_at(mixers, mixer, dense + i)
            second = mlps[i % len(mlps)]
            groups.append(_every(period, mixer, second, chosen, i, dense, a.n_layer))
    return [
        group for group in groups if not (isinstance(group.is_there, int) and group.is_there == 0)
    ]


def _period(pattern: str) -> list[str]:
    """Return the shortest list of names whose repetition gives the pattern."""
    names = pattern.split()
    lengths = (n for n in range(1, len(names) + 1) if len(names) % n == 0)
    return next(names[:n] for n in lengths if names[:n] * (len(names) // n) == names)


def _is_at(names: list[str], name: str, index):
    n = len(names)
    if n == 1:
        return 1
    rest = index - n * ceil_div(index + 1 - n, n)
    return sum(_is_zero(rest - i) for i, name_at_i in enumerate(names) if name_at_i == name)


def _is_zero(x):
    return 1 - positive(x) - positive(-x)


def _every(period: int, mixer: str, second: str, chosen, i: int, start, end) -> LayerGroup:
    """Return the group of the i-th of every `period` layers with `start` ≤ index < `end`.

    `chosen`: 1 where the group exists, else 0.
    """

    def before(index):
        inside = largest(index - start, 0) - largest(index - end, 0)
        return ceil_div(inside - i, period)

    is_there, last = chosen * positive(end - start - i), start + i + period * (before(end) - 1)
    return LayerGroup(mixer, second, is_there, start + i, last, lambda x: chosen * before(x))
