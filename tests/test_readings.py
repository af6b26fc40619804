"""One formula, four readings: integers, Polars columns, SymPy symbols, Vega expressions."""

import re

import polars as pl
import sympy
import vl_convert
from hypothesis import given, settings
from strategies import architectures

from modelbudget.expand import named_architecture
from modelbudget.predict import predict
from modelbudget.readings import signals, symbols
from modelbudget.run import Run
from modelbudget.terms import total


def words(architecture) -> dict[str, str]:
    return {name: getattr(architecture, name) for name in architecture.words()}


def sizes(architecture) -> dict[str, int]:
    return {name: int(getattr(architecture, name)) for name in architecture.sizes()}


def as_integers(architecture) -> dict[str, int]:
    terms = type(architecture).parameters(architecture)
    return {name: term.total for name, term in terms.items() if term.total}


def as_columns(architecture) -> dict[str, int]:
    row = {"architecture": "it", "run": "so", "family": architecture.name()}
    row |= architecture.model_dump() | Run().model_dump()
    table = predict(pl.DataFrame([row]), ["parameters"])
    return dict(table.select("component", "predicted").iter_rows())


def as_symbols(architecture) -> dict[str, int]:
    family = type(architecture)
    terms = family.parameters(symbols.namespace(family, words(architecture)))
    numbers = {sympy.Symbol(name, integer=True): n for name, n in sizes(architecture).items()}
    values = {name: int(sympy.sympify(term.total).subs(numbers)) for name, term in terms.items()}
    return {name: value for name, value in values.items() if value}


def as_signals(architecture) -> int:
    """The sum, computed by Vega itself: drawn as text into a picture, and read from there."""
    family = type(architecture)
    terms = family.parameters(signals.namespace(family, words(architecture)))
    formula = total(terms).to_dict()["expr"]
    spec = {
        "width": 10,
        "height": 10,
        "signals": [{"name": name, "value": size} for name, size in sizes(architecture).items()],
        "marks": [
            {
                "type": "text",
                "encode": {"update": {"text": {"signal": f"'sum=' + ({formula})"}}},
            }
        ],
    }
    return int(re.search(r"sum=(\d+)", vl_convert.vega_to_svg(spec))[1])


@given(architectures)
@settings(max_examples=100, deadline=None)
def test_columns_and_symbols_equal_integers(architecture):
    expected = as_integers(architecture)
    assert as_columns(architecture) == expected
    assert as_symbols(architecture) == expected


@given(architectures)
@settings(max_examples=25, deadline=None)
def test_vega_equals_integers(architecture):
    assert as_signals(architecture) == sum(as_integers(architecture).values())


def test_vega_is_exact_for_palm_540b(catalogue):
    assert as_signals(named_architecture(catalogue["palm-540b"])) == 540_356_474_880
