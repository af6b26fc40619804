"""What `make test` takes of a product, and `make test-all` (TESTS=all) in full."""

import os
from collections.abc import Sequence
from itertools import combinations, product

import pytest

ALL = os.environ.get("TESTS") == "all"


def examples(n: int) -> int:
    """Return how many examples a long test draws: a third of them in `make test`."""
    return n if ALL else -(-n // 3)


def seeds(n: int) -> list:
    """Return the numbers of random cases, of which the second half is marked `slow`."""
    half = -(-n // 2)
    return [*range(half), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(half, n))]


def some(items: Sequence, of: int, start: int = 0) -> list:
    """Return each `of`-th item in `make test`, from one on that tests choose in turn; else all."""
    return list(items) if ALL else list(items[start % of :: of])


def pairwise(combinations_: Sequence[tuple]) -> list[tuple]:
    """Return few of the combinations, with each pair of values that any of them has."""
    left = {pair for one in combinations_ for pair in _pairs(one)}
    chosen = []
    while left:
        best = max(combinations_, key=lambda one: len(left & _pairs(one)))
        chosen.append(best)
        left -= _pairs(best)
    return chosen


def _pairs(combination: tuple) -> set[tuple]:
    return set(combinations(((axis, repr(value)) for axis, value in enumerate(combination)), 2))


def product_by_tier(*axes: Sequence) -> list:
    """Return the product as cases of a test, marked `slow` unless each pair of values needs it."""
    all_of_it = list(product(*axes))
    pairs = pairwise(all_of_it)
    return [
        one if one in pairs else pytest.param(*one, marks=pytest.mark.slow) for one in all_of_it
    ]
