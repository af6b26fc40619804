"""A regime from a lower value of a field on.

A symbol is at least 2, and a field of 0 or 1 is a number, so that a run of one sequence and runs of
several are two regimes. Mostly the polynomials of the second are right for the first as well.
"""

from collections.abc import Mapping
from math import prod

from modelbudget.symbolic_programs.regime import Regime
from modelbudget.symbolic_programs.symbolic_sizes import LEAST, Terms, is_positive, terms_of

Values = Mapping[str, int]
"""Numbers by the name of a symbol."""


def extends(regime: Regime, other: Regime) -> bool:
    """Let a regime hold where another does too, if that gives the same; return whether it does.

    In `other` more fields are numbers, which are less than their symbols may be in `regime`.
    """
    fields = other.numbers.keys() - regime.numbers.keys()
    if not fields or {**other.numbers, **regime.numbers} != other.numbers:
        return False
    values = {}
    for name, (field, form) in regime.symbols.fields.items():
        if field in fields and form.factors:
            return False
        if field in fields:
            values[name] = other.numbers[field] - form.base
    of_quotients = [size for pair in regime.symbols.quotients.values() for size in pair]
    if any(name in names for size in of_quotients for names in terms_of(size) for name in values):
        return False
    if not (_has_same_answers(regime, other, values) and _is_equal(regime, other, values)):
        return False
    regime.least.update(values)
    return True


def below(regime: Regime, numbers: Mapping[str, int]) -> frozenset[str]:
    """Return the symbols that are less than those of a run with symbols may be."""
    values = regime.read(numbers)
    return frozenset(name for name in regime.least if values.monomial((name,)) < LEAST)


def _has_same_answers(regime: Regime, other: Regime, values: Values) -> bool:
    """Return whether all questions of the other are answered in the regime, in the same way."""
    answers = {}
    for (terms, sign), answer in regime.symbols.answers.items():
        at = _at(dict(terms), values)
        answers[frozenset(at.items()), sign] = answer
    return all(
        answers.get((frozenset(terms), sign)) == answer
        for (terms, sign), answer in other.symbols.answers.items()
    )


def _is_equal(regime: Regime, other: Regime, values: Values) -> bool:
    """Return whether all quantities are the same at some values of symbols."""
    for quantity, of_components in other.quantities.items():
        for component, size in of_components.items():
            expected = _polynomials(size)
            polynomials = [
                _at(terms, values) for terms in _polynomials(regime.quantities[quantity][component])
            ]
            if any(terms not in polynomials for terms in expected) or not all(
                any(_is_at_most(terms, most) for most in expected) for terms in polynomials
            ):
                return False
    return True


def _polynomials(size) -> list[Terms]:
    return [terms_of(part) for part in (size if isinstance(size, tuple) else (size,))]


def _at(terms: Terms, values: Values) -> Terms:
    """Put numbers in place of symbols."""
    result: Terms = {}
    for names, c in terms.items():
        symbols = tuple(name for name in names if name not in values)
        factor = prod(values[name] for name in names if name in values)
        result[symbols] = result.get(symbols, 0) + c * factor
    return {names: c for names, c in result.items() if c}


def _is_at_most(terms: Terms, other: Terms) -> bool:
    """Return whether a polynomial surely is not larger than another."""
    difference = {n: other.get(n, 0) - terms.get(n, 0) for n in {*terms, *other}}
    return is_positive(difference, or_zero=True)
