"""Operations of formulas besides + - * //, with one implementation for each reading.

The implementations here are for integers, and for readings that compute as these do; those of
columns, symbols and signals are in their files (`modelbudget/architecture/evaluators/`).
"""

from collections.abc import Callable, Iterable
from functools import singledispatch
from math import isqrt
from typing import Any

from modelbudget.common.attributes import with_attributes

MOST_TRIED = 10**12
"""Up to here divisors are tried; sympy finds those of larger numbers, but is slow to import."""


def by_reading(of_integers: Callable) -> Any:
    """Select an operation's implementation by the class of its first argument.

    As functools.singledispatch, whose look-up takes longer than most of the operations.
    """
    every = singledispatch(of_integers)
    chosen: dict[type, Callable] = {}

    def operation(first, *operands):
        implementation = chosen.get(first.__class__)
        if implementation is None:
            implementation = chosen[first.__class__] = every.dispatch(first.__class__)
        return implementation(first, *operands)

    def register(*arguments):
        chosen.clear()
        return every.register(*arguments)

    return with_attributes(operation, register=register)


@by_reading
def ceil_div(x, y):
    """x divided by y, rounded up."""
    return -(-x // y)


def is_nothing(value) -> bool:
    """Whether a value is 0 whatever the fields are."""
    return isinstance(value, int) and value == 0


@by_reading
def positive(x) -> Any:
    """1 where x is greater than 0, else 0: whether a part whose size may be 0 exists."""
    return int(x > 0)


@by_reading
def largest_of(first, *values):
    """Return the maximum; if any value is an expression, the first must be one."""
    return max((first, *values))


def largest(*values):
    """Return the maximum of numbers and expressions, in any order."""
    return largest_of(*_numbers_last(values))


@by_reading
def highest_of(first, *values):
    """Return the maximum of the moments of a run, of which a reading may keep several."""
    return max((first, *values))


def highest(*values):
    """Return the maximum of moments, in any order."""
    return highest_of(*_numbers_last(values))


def _numbers_last(values: tuple) -> tuple:
    """Return expressions first: an implementation is selected by the first argument."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) in (0, len(values)):
        return values
    return (*(value for value in values if not isinstance(value, int)), *numbers)


@by_reading
def same(x, y) -> bool:
    """Whether two values are surely equal."""
    return x is y or (type(x) is type(y) and x == y)


def divisors(*numbers: int) -> list[int]:
    """Return all divisors of some numbers in ascending order."""
    return sorted({divisor for n in numbers for divisor in _divisors(n)})


def _divisors(n: int) -> Iterable[int]:
    if n <= MOST_TRIED:
        return (part for i in range(1, isqrt(n) + 1) if n % i == 0 for part in (i, n // i))
    import sympy  # factorises without trying all

    return sympy.divisors(n)
