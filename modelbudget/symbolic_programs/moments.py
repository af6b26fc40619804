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
from typing import Any

import numpy as np

from modelbudget.architecture.arithmetic import highest_of
from modelbudget.symbolic_programs.symbolic_sizes import (
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

    def __init__(self, of: Sequence[Any], more: Any = 0):
        """`more`: what is added to it."""
        self.of, self.more = of, more

    def __add__(self, n_bytes):
        return Largest([self], n_bytes)

    @cached_property
    def kept(self) -> list[Size | int]:
        """Leave out what another polynomial surely is not smaller than."""
        values = [
            x for value in self.of for x in (value.kept if isinstance(value, Largest) else [value])
        ]
        kept = _undominated(*_matrix(values))
        if self.more.__class__ is int and not self.more:
            return kept
        (more,) = Largest([self.more]).kept
        return [value + more for value in kept]


Change = tuple[Any, int]
"""Bytes, and 1 where they are allocated, -1 where they are freed."""
Part = tuple[list[Change], int, Any]
"""Changes of live bytes, how many of them are added up, from the first on, and a factor of the
sum."""


class Moment:
    """A sum of live bytes.

    A change is listed as it is: Python may free a tensor while another run computes, whose symbols
    have the same names and other values.
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: Part):
        self.parts = parts

    def __add__(self, other):
        return Moment(*self.parts, *other.parts) if other.__class__ is Moment else self._with(other)

    __radd__ = __add__

    def __sub__(self, other):
        return self + other * -1 if other.__class__ is Moment else self._with(other, -1)

    def __mul__(self, factor):
        return Moment(*[(changes, n, factor * by) for changes, n, by in self.parts])

    __rmul__ = __mul__

    def polynomial(self) -> Size | int:
        """Return the sum, which is shorter than its parts."""
        terms: Terms = {}
        for changes, n, factor in self.parts:
            sum_of_part = _sum_of(changes[:n])
            for by, d in terms_of(factor).items():
                for names, c in sum_of_part.items():
                    both = joined(names, by)
                    terms[both] = terms.get(both, 0) + c * d
        return size_of(terms)

    def _with(self, n_bytes, sign: int = 1) -> Moment:
        *others, (changes, n, factor) = self.parts
        if factor != 1 or n < len(changes):
            return Moment(*self.parts, ([(n_bytes, sign)], 1, 1))
        changes.append((n_bytes, sign))
        return Moment(*others, (changes, n + 1, 1))


def nothing() -> Moment:
    """Return the live bytes of a tape before its first allocation."""
    return Moment(([], 0, 1))


@highest_of.register(Moment)
@highest_of.register(Size)
@highest_of.register(Largest)
def _(*values):
    return Largest(values)


def _undominated(rows: np.ndarray, monomials: Sequence[Monomial]) -> list[Size | int]:
    is_below_next = (rows[1:] >= rows[:-1]).all(axis=1)
    rows = _distinct(rows[~np.append(is_below_next, False)])
    values = Symbols.active.values
    of_monomials = [prod(values[name] for name in names) for names in monomials]
    rows = rows[np.argsort(-(rows.astype(float) @ np.array(of_monomials, float)), kind="stable")]
    above = [shifted(names) for names in monomials]
    places = _places(names for terms in above for names, _ in terms)
    bounds = _product(rows, _filled([dict(terms) for terms in above], places).astype(rows.dtype))
    left = np.arange(len(rows))
    kept = []
    while len(left):
        kept.append(left[0])
        is_left = (bounds > bounds[0]).any(axis=1)
        left, bounds = left[is_left], bounds[is_left]
    return [size_of(dict(zip(monomials, rows[number].tolist(), strict=True))) for number in kept]


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


def _matrix(moments: Sequence[Any]) -> tuple[np.ndarray, list[Monomial]]:
    """Return live bytes as rows of coefficients, and the products of symbols of the columns."""
    rows_of: dict[tuple, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    lists: dict[int, list] = {}
    factors: dict[int, Any] = {}
    sizes: list[tuple[Any, int]] = []
    for row, moment in enumerate(moments):
        if moment.__class__ is Moment:
            parts = moment.parts
        else:
            sizes.append((moment, 1))
            parts = (sizes, len(sizes), 1), (sizes, len(sizes) - 1, -1)
        for place, (changes, n, factor) in enumerate(parts):
            # Equal polynomials are one object.
            lists[id(changes)], factors[id(factor)] = changes, factor
            rows, counts = rows_of[id(changes), id(factor), place]
            rows.append(row)
            counts.append(n)
    sums = {key: _sums(changes) for key, changes in lists.items()}
    pieces = [
        (of_rows, sums[key][0], c, [joined(names, by) for names in sums[key][1]])
        for (key, factor, _), of_rows in rows_of.items()
        for by, c in terms_of(factors[factor]).items()
    ]
    places = _places(names for *_, monomials in pieces for names in monomials)
    largest = sum(abs(c) * float(np.abs(sums_).max(initial=0)) for _, sums_, c, _ in pieces)
    is_exact = all(sums_.dtype == np.int64 for _, sums_, *_ in pieces) and largest < LARGEST_INT64
    matrix = np.zeros((len(moments), len(places)), np.int64 if is_exact else object)
    for (rows, counts), sums_, c, monomials in pieces:
        columns = [places[names] for names in monomials]
        matrix[np.ix_(rows, columns)] += c * sums_[counts]
    return matrix, list(places)


def _sum_of(changes: Sequence[Change]) -> Terms:
    """Return the sum of changes: most sizes are freed as often as they are allocated."""
    times: dict[int, int] = {}
    sizes: dict[int, Any] = {}
    for n_bytes, sign in changes:
        key = id(n_bytes)
        times[key] = times.get(key, 0) + sign
        sizes[key] = n_bytes
    terms: Terms = {}
    for key, n in times.items():
        for names, c in terms_of(sizes[key]).items():
            terms[names] = terms.get(names, 0) + c * n
    return terms


def _sums(changes: Sequence[Change]) -> tuple[np.ndarray, list[Monomial]]:
    """Return the sums of the first changes, of none at first, and the products of symbols."""
    results, key = Symbols.active.results, ("sums", id(changes), len(changes))
    if key not in results:
        listed = tuple(changes)  # Python may free tensors meanwhile, which lists more
        distinct = {id(n_bytes): terms_of(n_bytes) for n_bytes, _ in listed}
        numbers = {key: number for number, key in enumerate(distinct, 1)}
        places = _places(names for terms in distinct.values() for names in terms)
        of_sizes = _filled([{}, *distinct.values()], places)
        if float(np.abs(of_sizes).max(initial=0)) * len(listed) >= LARGEST_INT64:
            of_sizes = of_sizes.astype(object)
        rows = of_sizes[[0, *(numbers[id(n_bytes)] for n_bytes, _ in listed)]]
        signs = np.array([1, *(sign for _, sign in listed)])
        sums = (rows * signs[:, None]).cumsum(axis=0), list(places)
        results[key] = changes, sums  # as long as these are there, no other list has their id
    return results[key][1]


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
