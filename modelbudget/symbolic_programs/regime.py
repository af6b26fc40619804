"""A regime: the quantities of a program as polynomials, and the rows in which they hold.

One run with symbols (`symbolic_sizes.py`) gives them; nothing in a program knows whether its sizes
are numbers or symbols. Deep models follow from shallow ones, as in `quantities/depth.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.record import Record
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Active
from modelbudget.quantities.depth import shallow
from modelbudget.symbolic_programs.moments import Largest, nothing
from modelbudget.symbolic_programs.symbolic_sizes import (
    LEAST,
    LEAST_OF,
    DividedError,
    Form,
    Monomial,
    Size,
    Symbols,
    Terms,
    symbol,
    terms_of,
)

Quantities = Mapping[str, Mapping[str, Any]]
"""By quantity and component: numbers, sizes, and for peaks tuples, of which the largest counts."""
DividedField = tuple[str, Form]
"""A field, and its form with the factors of which it is a multiple."""
SIZES_OF_RUN = ("batch", "length", "target_length", "data_parallel")
"""Numeric fields of a run that are symbols; all others are numbers."""


@dataclass
class Regime:
    """What a run with symbols gives for all rows with the same answers to its questions."""

    symbols: Symbols
    numbers: dict[str, int]
    """Fields that vary, and are this number in the whole regime."""
    quantities: Quantities
    missing: str | None = None
    """The part or setting that has no program, if that is why there are no quantities."""
    least: dict[str, int] = field(default_factory=dict)
    """The least values of symbols that may be below LEAST here (`least_values.py`)."""

    def divided_fields(self) -> list[DividedField]:
        """Return the fields that are multiples of something in the whole regime."""
        return [(name, form) for name, form in self.symbols.fields.values() if form.factors]

    def read(self, fields: Mapping[str, Any]) -> Values:
        """Read polynomials with the fields of any reading: numbers, columns, nodes of a graph."""
        return Values(self.symbols, fields)

    def holds(self, fields: Mapping[str, Any]):
        """Return 1 where the quantities hold, else 0."""
        values, holds = self.read(fields), 1
        for name, number in self.numbers.items():
            # No field is negative.
            is_number = _is_zero(fields[name] - number) if number else 1 - positive(fields[name])
            holds = holds * is_number
        for name, (of_record, (base, factors)) in self.symbols.fields.items():
            whole = values.step(factors) * values.monomial((name,)) + base
            if name not in LEAST_OF:
                least = self.least.get(name, LEAST)
                holds = holds * positive(values.monomial((name,)) + (1 - least))
            if factors:
                holds = holds * _is_zero(fields[of_record] - whole)
        for (terms, sign), answer in self.symbols.answers.items():
            value = values.polynomial(dict(terms))
            is_so = positive(value) if sign == ">" else _is_zero(value)
            holds = holds * (is_so if answer else 1 - is_so)
        return holds


class Values:
    """Evaluates polynomials in one reading; each product and each sum is computed once."""

    def __init__(self, symbols: Symbols, fields: Mapping[str, Any]):
        self.symbols, self.fields = symbols, fields
        self.products: dict[Monomial, Any] = {}
        self.sums: dict[frozenset, Any] = {}

    def of(self, size):
        """Return a number, a polynomial, or the largest of several."""
        if isinstance(size, tuple):
            return self.largest(size)
        return self.polynomial(size.terms) if isinstance(size, Size) else size

    def polynomial(self, terms: Terms):
        key = frozenset(terms.items())
        if key not in self.sums:
            total: Any = 0
            for names, c in terms.items():
                total = self.monomial(names) * c + total
            self.sums[key] = total
        return self.sums[key]

    def largest(self, sizes):
        """Return the maximum; what all polynomials have in common is added to it."""
        polynomials = [terms_of(size) for size in sizes]
        common = {
            names: least
            for names in polynomials[0]
            if (least := min(terms.get(names, 0) for terms in polynomials)) > 0
        }
        remainders = (
            {n: c - common.get(n, 0) for n, c in terms.items() if c != common.get(n, 0)}
            for terms in polynomials
        )
        return self.polynomial(common) + largest(*map(self.polynomial, remainders))

    def monomial(self, names: Monomial):
        if names not in self.products:
            self.products[names] = self._product(names)
        return self.products[names]

    def _product(self, names: Monomial):
        if len(names) > 1:
            return self.monomial(names[:-1]) * self.monomial(names[-1:])
        if not names:
            return 1
        if names[0] in self.symbols.fields:
            field, (base, factors) = self.symbols.fields[names[0]]
            value = self.fields[field] - base if base else self.fields[field]
            return value // self.step(factors) if factors else value
        return ceil_div(*map(self.of, self.symbols.quotients[names[0]]))

    def step(self, factors):
        step: Any = 1
        for factor in factors:
            # In the rows of another regime, a field may be 0.
            step = (
                largest(self.fields[factor], 1) * step if isinstance(factor, str) else step * factor
            )
        return step


def _is_zero(x):
    return (1 - positive(x)) * (1 - positive(-x))


def traced(
    program: Callable[[Any, Any], Quantities],
    a,
    run,
    varying: set[str],
    divided_fields: Iterable[DividedField] = (),
) -> Regime:
    """Run a program with symbols for the fields that vary; `a`, `run`: one model, the example.

    `divided_fields`: of regimes of similar models, which divide fields by the same numbers.
    """
    forms = _forms(a, varying)
    numbers = dict(a) | dict(run)
    for name, form in divided_fields:
        by = prod(numbers[n] if isinstance(n, str) else n for n in form.factors)
        value, remainder = divmod(numbers[name], by) if by else (0, 0)
        if forms.get(name) == Form() and not form.base and value >= LEAST and not remainder:
            forms[name] = form
    before = Symbols.active, Active.zero
    try:
        Active.zero = nothing
        while True:
            Symbols.active = Symbols()
            sizes = _sizes(a, run, forms)
            numbers = {
                name: getattr(a if name in type(a).model_fields else run, name)
                for name in sorted(varying)
                if not isinstance(sizes.get(name), Size)
            }
            records = (_with(record, sizes) for record in (a, run))
            try:
                quantities = {
                    quantity: {name: _simplest(value) for name, value in values.items()}
                    for quantity, values in program(*records).items()
                }
                return Regime(Symbols.active, numbers, quantities)
            except NoProgramError as error:
                return Regime(Symbols.active, numbers, {}, str(error))
            except DividedError as error:
                form = forms[error.name]
                forms[error.name] = form._replace(factors=(*form.factors, error.factor))
    finally:
        Symbols.active.forget()
        Symbols.active, Active.zero = before


def _simplest(value):
    if not isinstance(value, Largest):
        return value
    return value.kept[0] if len(value.kept) == 1 else tuple(value.kept)


def _forms(a, varying: set[str]) -> dict[str, Form]:
    """Return the fields that are symbols: depth is one where few layers stand for more of them."""
    fields = type(a).model_fields
    sizes = {name for name in varying if name in fields and fields[name].annotation is int}
    forms = {name: Form() for name in sorted(sizes | varying & {*SIZES_OF_RUN})}
    if layers := forms.pop("n_layer", None) and shallow(a):
        base = a.n_layer - layers.n_left_out * layers.period
        forms["n_layer"] = Form(base, (layers.period,))
    return forms


def _sizes(a, run, forms: Mapping[str, Form]) -> dict[str, Any]:
    """Return the fields as symbols, or as numbers where those would be less than 2."""
    fields = dict(a) | dict(run)
    sizes: dict[str, Any] = {}

    def size(name: str):
        if name not in forms:
            return fields[name]
        if name not in sizes:
            base, factors = forms[name]
            step, value = 1, fields[name] - base
            for factor in factors:
                is_field = isinstance(factor, str)
                step = (size(factor) if is_field else factor) * step
                value //= fields[factor] if is_field else factor
            symbol_name = "/".join(map(str, (name, *factors)))
            if value < LEAST_OF.get(symbol_name, LEAST):
                sizes[name] = fields[name]
            else:
                Symbols.active.fields[symbol_name] = name, forms[name]
                sizes[name] = step * symbol(symbol_name, value) + base
        return sizes[name]

    for name in forms:
        size(name)
    return sizes


def _with(record: Record, sizes: Mapping[str, Any]):
    return record.model_copy(
        update={n: v for n, v in sizes.items() if n in type(record).model_fields}
    )
