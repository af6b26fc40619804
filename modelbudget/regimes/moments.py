"""Live bytes of a run with symbols, moment by moment, and which of them may be the largest.

Live bytes are not added up as polynomials. What is allocated and freed is listed, and a place in
the list stands for a sum; all sums are the rows of one matrix, whose columns are products of
symbols. So are their differences and multiples, of which deep models are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from modelbudget.architecture.operations import highest_of
from modelbudget.regimes.symbolic_sizes import (
    Monomial,
    Size,
    Symbols,
    Terms,
    joined,
    shifted,
    size_of,
    terms_of,
)

LARGEST_INT64, EXACT_IN_FLOAT = 2**62, 2**53


class Largest:
    """The maximum of polynomials, numbers, moments, and of other maxima."""

    def __init__(self, of: Sequence[Any]):
        self.of = of

    @cached_property
    def kept(self) -> list[Size | int]:
        """Leave out what another polynomial surely is not smaller than."""
        values = [
            x for value in self.of for x in (value.kept if isinstance(value, Largest) else [value])
        ]
        return _undominated(*_matrix(values))


class Part(NamedTuple):
    """The first of some changes of live bytes, added up, times a factor."""

    changes: list[tuple[Any, int]]
    """Bytes, and 1 where they are allocated, -1 where they are freed."""
    n: int
    factor: Any


class Moment:
    """A sum of live bytes.

    A change is listed as it is: Python may free a tensor while another run computes, whose symbols
    have the same names and other values.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Part, ...]):
        self.parts = parts

    def __add__(self, other):
        return Moment(self.parts + other.parts) if isinstance(other, Moment) else self._with(other)

    __radd__ = __add__

    def __sub__(self, other):
        return self + other * -1 if isinstance(other, Moment) else self._with(other, -1)

    def __mul__(self, factor):
        return Moment(tuple(Part(changes, n, factor * by) for changes, n, by in self.parts))

    __rmul__ = __mul__

    def _with(self, n_bytes, sign: int = 1) -> Moment:
        changes, n, factor = self.parts[0]
        if len(self.parts) > 1 or factor != 1 or n < len(changes):
            return Moment((*self.parts, Part([(n_bytes, sign)], 1, 1)))
        changes.append((n_bytes, sign))
        return Moment((Part(changes, n + 1, 1),))


def nothing() -> Moment:
    """Return the live bytes of a tape before its first allocation."""
    return Moment((Part([], 0, 1),))


@highest_of.register(Moment)
@highest_of.register(Size)
@highest_of.register(Largest)
def _(*values):
    return Largest(values)


def _undominated(rows: np.ndarray, monomials: Sequence[Monomial]) -> list[Size | int]:
    rows = _distinct(rows)
    values = Symbols.active.values
    of_monomials = [prod(values[name] for name in names) for names in monomials]
    rows = rows[np.argsort(-(rows.astype(float) @ np.array(of_monomials, float)), kind="stable")]
    above = [shifted(names) for names in monomials]
    places = _places(names for terms in above for names, _ in terms)
    bounds = _product(rows, _filled([dict(terms) for terms in above], places).astype(rows.dtype))
    left = np.arange(len(rows))
    kept = []
    while len(left):
        first = left[0]
        kept.append(first)
        is_left = (bounds > bounds[0]).any(axis=1)
        left = left[is_left]
        bounds = bounds[1:] if len(left) == len(bounds) - 1 else bounds[is_left]
    return [_size(rows[number], monomials, of_monomials) for number in kept]


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Return each row once, in the order in which they come."""
    if rows.dtype == object:
        return np.array(list(dict.fromkeys(map(tuple, rows.tolist()))), dtype=object)
    first = {row.tobytes(): number for number, row in reversed(list(enumerate(rows)))}
    return rows[sorted(first.values())]


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Multiply matrices of integers: in floating point, which is faster, if that is exact."""
    largest = float(np.abs(x).max(initial=0)) * float(np.abs(y).sum(axis=0).max(initial=0))
    return x.astype(float) @ y.astype(float) if largest < EXACT_IN_FLOAT else x @ y


def _size(row: np.ndarray, monomials: Sequence[Monomial], of_monomials: Sequence[int]):
    terms = {names: int(c) for names, c in zip(monomials, row, strict=True) if c}
    value = sum(int(c) * value for c, value in zip(row, of_monomials, strict=True) if c)
    return size_of(terms, value)


def _matrix(moments: Sequence[Any]) -> tuple[np.ndarray, list[Monomial]]:
    """Return live bytes as rows of coefficients, and the products of symbols of the columns."""
    rows_of: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
    lists: dict[int, list] = {}
    factors: dict[int, Any] = {}
    for row, moment in enumerate(moments):
        parts = moment.parts if isinstance(moment, Moment) else (Part([(moment, 1)], 1, 1),)
        for place, (changes, n, factor) in enumerate(parts):
            # Equal polynomials are one object.
            lists[id(changes)], factors[id(factor)] = changes, factor
            rows_of[id(changes), id(factor), place].append((row, n))
    sums = {key: _sums(changes) for key, changes in lists.items()}
    pieces = [
        (rows, sums[key][0], c, [joined(names, by) for names in sums[key][1]])
        for (key, factor, _), rows in rows_of.items()
        for by, c in terms_of(factors[factor]).items()
    ]
    places = _places(names for *_, monomials in pieces for names in monomials)
    largest = sum(abs(c) * float(np.abs(sums_).max(initial=0)) for _, sums_, c, _ in pieces)
    is_exact = all(sums_.dtype == np.int64 for _, sums_, *_ in pieces) and largest < LARGEST_INT64
    matrix = np.zeros((len(moments), len(places)), np.int64 if is_exact else object)
    for pairs, sums_, c, monomials in pieces:
        numbers, counts = np.array(pairs).T
        columns = [places[names] for names in monomials]
        matrix[np.ix_(numbers, columns)] += c * sums_[counts]
    return matrix, list(places)


def _sums(changes: Sequence[tuple[Any, int]]) -> tuple[np.ndarray, list[Monomial]]:
    """Return the sums of the first changes, of none at first, and the products of symbols."""
    rows = [{}, *(terms_of(n_bytes) for n_bytes, _ in changes)]
    signs = [1, *(sign for _, sign in changes)]
    places = _places(names for row in rows for names in row)
    return (_filled(rows, places) * np.array(signs)[:, None]).cumsum(axis=0), list(places)


def _places(monomials: Iterable[Monomial]) -> dict[Monomial, int]:
    return {names: place for place, names in enumerate(dict.fromkeys(monomials))}


def _filled(rows: Sequence[Terms], places: dict[Monomial, int]) -> np.ndarray:
    """Return coefficients as a matrix: of Python's integers if 64 bits may not hold their sums."""
    numbers, columns, coefficients = [], [], []
    for number, row in enumerate(rows):
        for names, c in row.items():
            numbers.append(number)
            columns.append(places[names])
            coefficients.append(c)
    dtype = np.int64 if sum(map(abs, coefficients)) < LARGEST_INT64 else object
    matrix = np.zeros((len(rows), len(places)), dtype)
    matrix[numbers, columns] = coefficients
    return matrix
