"""Sizes as symbols: one run of a program gives polynomials for all sizes of a regime.

A `Size` is a polynomial of symbols, and its value in one example. Where a program asks whether two
sizes are equal, or which is larger, the example answers, and the question is kept as a guard: the
polynomials hold wherever the guards have the same answers (as torch's SymInt). A symbol is at least
2, since fields of 0 and 1 are numbers (but for a batch of 1): so most questions have one answer.

Coefficients are integers. Where a program halves a field that is even in the example, the field
becomes twice a symbol (`DividedError`), and the run begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod
from typing import Any, ClassVar, Literal, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div

Monomial = tuple[str, ...]
"""Names of symbols in order, each as often as it is a factor."""
Terms = dict[Monomial, int]
LEAST = 2
"""The least value of a symbol."""
LEAST_OF = {"batch": 1}
"""Symbols whose least value is another: of a run of one sequence, which mostly asks the same."""


class Form(NamedTuple):
    """A field as base + factors · symbol. A factor is a number or another field."""

    base: int = 0
    factors: tuple[int | str, ...] = ()


class Question(NamedTuple):
    """Whether a polynomial is equal to 0, or larger."""

    terms: tuple[tuple[Monomial, int], ...]
    sign: Literal["=", ">"]


class DividedError(Exception):
    """A program divides a field, which must have another form for a polynomial to say so."""

    def __init__(self, name: str, factor: int | str):
        super().__init__(name, factor)
        self.name, self.factor = name, factor


@dataclass
class Symbols:
    """The symbols of a run: their values in the example, and what was asked about them."""

    values: dict[str, int] = field(default_factory=dict)
    fields: dict[str, tuple[str, Form]] = field(default_factory=dict)
    """The field of each symbol that stands for one, and its form."""
    answers: dict[Question, bool] = field(default_factory=dict)
    quotients: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Symbols that are a quotient, rounded up: numerator and denominator."""
    sizes: dict[frozenset, Size] = field(default_factory=dict)
    """Equal polynomials are one object, so that each result is computed once."""
    results: dict[tuple, Any] = field(default_factory=dict)
    """Answers to questions, and sums of changes, by the identities of what they are about."""

    active: ClassVar[Symbols]

    def forget(self) -> None:
        """Drop what only a run needs."""
        for size in self.sizes.values():
            size.results = _no_results()
        self.sizes, self.results = {}, {}


Symbols.active = Symbols()
N_OPERATIONS = 6


def _no_results() -> list[dict | None]:
    return [None] * N_OPERATIONS


def _once(number: int) -> Callable:
    """Let an operation on the same objects be computed once; `number`: of the operation."""

    def of(operation: Callable) -> Callable:
        def run(self, other):
            results = self.results[number]
            if results is None:
                results = self.results[number] = {}
            result = results.get(other)
            if result is None:
                result = results[other] = operation(self, other)
            return result

        return run

    return of


class Size:
    """A polynomial that is not a number: made by `size_of`."""

    is_symbolic = True

    __slots__ = ("results", "terms", "value")

    def __init__(self, terms: Terms, value: int):
        self.terms, self.value = terms, value
        self.results = _no_results()
        """By the number of an operation: results by the other argument."""

    @_once(0)
    def __add__(self, other):
        if not isinstance(other, Size | int):
            return NotImplemented
        terms = dict(self.terms)
        for names, c in terms_of(other).items():
            terms[names] = terms.get(names, 0) + c
        return size_of(terms, self.value + (other.value if isinstance(other, Size) else other))

    __radd__ = __add__

    def __neg__(self):
        return self * -1

    @_once(1)
    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    @_once(2)
    def __mul__(self, other):
        if not isinstance(other, Size | int):
            return NotImplemented
        terms: Terms = {}
        for names, c in self.terms.items():
            for names_of_other, d in terms_of(other).items():
                both = joined(names, names_of_other)
                terms[both] = terms.get(both, 0) + c * d
        return size_of(terms, self.value * (other.value if isinstance(other, Size) else other))

    __rmul__ = __mul__

    def __floordiv__(self, other):
        if other == 1:
            return self
        if self < 0:
            return -ceil_div(-self, other)
        return _quotient(self, other, is_rounded_up=False)

    def __rfloordiv__(self, other):
        if other < 0:
            return -_quotient(-other, self, is_rounded_up=True)
        return _quotient(other, self, is_rounded_up=False)

    def __mod__(self, other):
        return self - other * (self // other)

    def __rmod__(self, other):
        return other - self * (other // self)

    @_once(3)
    def __eq__(self, other):
        return self is other or (isinstance(other, Size | int) and asked(self - other, "="))

    def __ne__(self, other):
        return not self == other

    @_once(4)
    def __gt__(self, other):
        return asked(self - other, ">")

    @_once(5)
    def __lt__(self, other):
        return asked(other - self, ">")

    def __ge__(self, other):
        return not asked(other - self, ">")

    def __le__(self, other):
        return not asked(self - other, ">")

    def __bool__(self):
        return not asked(self, "=")

    def __index__(self):
        """Return the value, where a number is needed: it then is the same in the whole regime."""
        if not asked(self - self.value, "="):
            raise AssertionError(f"{self} is not its value")
        return self.value

    __int__ = __index__

    # Whether two sizes are equal is a question; as a key, a polynomial is equal to itself alone.
    __hash__ = object.__hash__

    def __str__(self):
        return " + ".join("·".join((str(c), *names)) for names, c in sorted(self.terms.items()))

    __repr__ = __str__


def symbol(name: str, value: int) -> Size:
    Symbols.active.values[name] = value
    size = size_of({(name,): 1})
    assert isinstance(size, Size)
    return size


def size_of(terms: Terms, value: int | None = None) -> Size | int:
    """Return a polynomial, or a number if it is one; `value`: its own in the example, if known."""
    terms = {names: c for names, c in terms.items() if c}
    if not terms or (len(terms) == 1 and () in terms):
        return terms.get((), 0)
    key = frozenset(terms.items())
    sizes, values = Symbols.active.sizes, Symbols.active.values
    if key not in sizes:
        if value is None:
            value = sum(c * prod(values[name] for name in names) for names, c in terms.items())
        sizes[key] = Size(terms, value)
    return sizes[key]


def terms_of(size: Size | int) -> Terms:
    return size.terms if isinstance(size, Size) else {(): size} if size else {}


@lru_cache(maxsize=65_536)
def joined(x: Monomial, y: Monomial) -> Monomial:
    return tuple(sorted(x + y))


def asked(difference: Size | int, sign: Literal["=", ">"]) -> bool:
    """Answer whether a polynomial is 0, or larger; keep the question if sizes decide it."""
    if not isinstance(difference, Size):
        return difference == 0 if sign == "=" else difference > 0
    results, key = Symbols.active.results, (sign, id(difference))
    if key not in results:
        results[key] = _answer(difference, sign)
    return results[key]


def _answer(difference: Size, sign: Literal["=", ">"]) -> bool:
    terms = difference.terms
    if is_positive(terms):
        return sign == ">"
    if is_positive({names: -c for names, c in terms.items()}):
        return False
    if sign == ">" and is_positive({names: -c for names, c in terms.items()}, or_zero=True):
        return False
    answer = difference.value == 0 if sign == "=" else difference.value > 0
    Symbols.active.answers[_question(terms, sign)] = answer
    return answer


def _question(terms: Terms, sign) -> Question:
    """Divide by what all terms have in common, which is positive."""
    first, *more = terms
    common = list(first)
    for names in more:
        left, kept = list(names), []
        for name in common:
            if name in left:
                left.remove(name)
                kept.append(name)
        common = kept
    divisor = gcd(*terms.values())
    reduced = sorted((_without(names, common), c // divisor) for names, c in terms.items())
    if sign == "=" and reduced[0][1] < 0:
        reduced = [(names, -c) for names, c in reduced]
    return Question(tuple(reduced), sign)


def _without(names: Monomial, removed) -> Monomial:
    left = list(names)
    for name in removed:
        left.remove(name)
    return tuple(left)


def is_positive(terms: Terms, or_zero: bool = False) -> bool:
    """Return whether a polynomial surely is larger than 0 (or not smaller)."""
    above = above_least(terms)
    return all(c >= 0 for c in above.values()) and (or_zero or above.get((), 0) > 0)


def above_least(terms: Terms) -> Terms:
    """Write a polynomial in what symbols are larger than their least value, which may be 0.

    Where no coefficient is negative, neither is the polynomial, and its least value is the last.
    """
    above: Terms = {}
    for names, c in terms.items():
        for monomial, times in shifted(names):
            above[monomial] = above.get(monomial, 0) + c * times
    return above


@lru_cache(maxsize=65_536)
def shifted(names: Monomial) -> tuple[tuple[Monomial, int], ...]:
    """Multiply out (LEAST + x) (LEAST + y) …"""
    least = LEAST_OF.get(names[0], LEAST) if names else LEAST
    if not names:
        return (((), 1),)
    product: Terms = {}
    for monomial, c in shifted(names[1:]):
        for more, d in ((monomial, least * c), (joined(names[:1], monomial), c)):
            product[more] = product.get(more, 0) + d
    return tuple(product.items())


def _quotient(x: Size | int, y: Size | int, is_rounded_up: bool) -> Size | int:
    """Divide: a polynomial where that is exact, else a symbol of its own."""
    if isinstance(y, int):
        whole: Terms = {}
        broken: Terms = {}
        for names, c in terms_of(x).items():
            (whole if c % y == 0 else broken)[names] = c
        if set(broken) <= {()}:
            divided = size_of({names: c // y for names, c in whole.items()})
            return divided + _rounded(broken.get((), 0), y, is_rounded_up)
        if len(broken) == 1:
            ((names, c),) = broken.items()
            factor = y // gcd(c, y)
            for name in names:
                if name in Symbols.active.fields and Symbols.active.values[name] % factor == 0:
                    raise DividedError(Symbols.active.fields[name][0], factor)
    elif isinstance(x, Size) and len(x.terms) == len(y.terms) == 1:
        ((names, c),), ((divisor, d),) = x.terms.items(), y.terms.items()
        common = tuple(
            name for name in set(names) for _ in range(min(names.count(name), divisor.count(name)))
        )
        names, divisor = _without(names, common), _without(divisor, common)
        if not divisor and c % d == 0:
            return size_of({names: c // d})
        if c == d == 1 and len(divisor) == 1:
            _divide_field_by_field(names, divisor[0])
    return _quotient_symbol(x, y, is_rounded_up)


def _rounded(x: int, y: int, is_rounded_up: bool) -> int:
    return -(-x // y) if is_rounded_up else x // y


def _divide_field_by_field(names: Monomial, divisor: str) -> None:
    symbols = Symbols.active
    if divisor not in symbols.fields or symbols.fields[divisor][1] != Form():
        return
    for name in names:
        if (
            name in symbols.fields
            and symbols.fields[name][1] == Form()
            and symbols.values[name] % symbols.values[divisor] == 0
        ):
            raise DividedError(symbols.fields[name][0], symbols.fields[divisor][0])


def _quotient_symbol(x: Size | int, y: Size | int, is_rounded_up: bool) -> Size | int:
    """Return a quotient as a symbol: rounded down, it is x + 1 - y, divided and rounded up."""
    if not is_rounded_up:
        x = x + 1 - y
    name = f"ceil(({x}) / ({y}))"
    values = (z.value if isinstance(z, Size) else z for z in (x, y))
    value = _rounded(*values, is_rounded_up=True)
    symbols = Symbols.active
    symbols.quotients[name] = x, y
    symbols.values[name] = value
    if value < LEAST:
        symbols.answers[Question((((), -value), ((name,), 1)), "=")] = True
        return value
    symbols.answers[Question((((), 1 - LEAST), ((name,), 1)), ">")] = True
    return size_of({(name,): 1})


@ceil_div.register(Size)
def _(x, y):
    if y == 1:
        return x
    is_negative = x < 0
    quotient = _quotient(-x if is_negative else x, y, is_rounded_up=not is_negative)
    return -quotient if is_negative else quotient
