"""One formula evaluated in each reading, for one architecture."""

import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import polars as pl
import sympy
from pydantic import ValidationError

from modelbudget.architecture.evaluators import graph, intervals, symbols
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.predict.predict import predict


def words(architecture) -> dict[str, str]:
    return {name: getattr(architecture, name) for name in architecture.categorical()}


def sizes(architecture) -> dict[str, int]:
    return {name: int(getattr(architecture, name)) for name in architecture.numeric()}


def as_integers(architecture) -> dict[str, int]:
    terms = type(architecture).parameters(architecture)
    return {name: term.total for name, term in terms.items() if term.total}


def as_columns(architecture) -> dict[str, int]:
    table = predict(two_rows(architecture, RunConfig()), ["parameters"])
    return in_first_row(table, "parameters")


def two_rows(a, run) -> pl.DataFrame:
    """It, and another with each number and switch another, so that all are columns.

    But for settings of a run that may not be another next to these.
    """
    row = {"architecture": "it", "run": "so", "family": a.name()}
    row |= a.model_dump() | run.model_dump()
    others = {name: _another(row[name]) for name in a.numeric()}
    for name in {"d_head", "d_rope", "d_rotary"} & others.keys():
        others[name] = 2 * row[name]  # RoPE rotates pairs of channels
    if "none" in f"{getattr(a, 'mixers', '')} {getattr(a, 'mlps', '')}".split():
        others["parallel"] = row["parallel"]  # a layer without one part has no program in parallel
    other_run = run.model_dump()
    for name in run.numeric():
        changed = other_run | {name: _another(row[name])}
        with suppress(ValidationError):
            RunConfig.model_validate(changed)
            other_run = changed
    return pl.DataFrame([row, row | others | other_run | {"architecture": "another"}])


def _another(value):
    return not value if isinstance(value, bool) else value + 1


def in_first_row(table: pl.DataFrame, quantity: str) -> dict[str, int]:
    first = table.filter(pl.col("architecture") == "it", pl.col("quantity") == quantity)
    return dict(first.drop_nulls("component").select("component", "predicted").iter_rows())


def as_bounds(formula, *records) -> dict[str, Any]:
    """Each number between itself and twice itself, 0 alone; words as they are. By component."""
    namespaces = []
    for record in records:
        ends = {name: (n, 2 * n) if n else 0 for name, n in sizes(record).items()}
        namespaces.append(intervals.namespace(type(record), words(record) | ends))
    return {name: term.total for name, term in formula(*namespaces).items()}


def as_symbols(architecture) -> dict[str, int]:
    family = type(architecture)
    terms = family.parameters(symbols.namespace(family, words(architecture)))
    values = of_symbols({name: term.total for name, term in terms.items()}, sizes(architecture))
    return {name: value for name, value in values.items() if value}


def of_symbols(formulas: dict[str, Any], numbers: dict[str, int]) -> dict[str, int]:
    """Each formula with the symbols replaced by numbers."""
    of_symbol = {sympy.Symbol(name, integer=True): sympy.Integer(n) for name, n in numbers.items()}

    @functools.cache  # formulas share parts, and SymPy's own `subs` visits a part each time
    def value(formula):
        if not formula.args:
            return of_symbol.get(formula, formula)
        return formula.func(*map(value, formula.args))

    return {name: int(value(sympy.sympify(formula))) for name, formula in formulas.items()}


def as_nodes(architecture) -> int:
    family = type(architecture)
    terms = family.parameters(graph.namespace(family, words(architecture)))
    return of_graph(total(terms), sizes(architecture))


def with_repeats(new: Sequence, copies: Sequence[tuple[int, int, int]]) -> list:
    """Return the sequence; the page's `formulas.js` does the same."""
    found, waiting = [], iter(new)
    for since, distance, length in copies:
        found += (next(waiting) for _ in range(since))
        for _ in range(length):
            found.append(found[-distance])
    return [*found, *waiting]


def of_graph(expression, numbers: dict[str, int]) -> int:
    """Computed from the data that the page's script has."""
    nodes = graph.Graph()
    whole = nodes.node(expression)
    data = nodes.data()
    values: list[int] = []
    new = list(zip(data["operations"], data["left"], data["right"], strict=True))
    rows = with_repeats(new, list(zip(*data["copies"], strict=True)))
    for number, (operation, left, right) in enumerate(rows):
        x, y = (
            values[number - one if one > 0 else -one] if operation not in "fk" else 0
            for one in (left, right)
        )
        match operation:
            case "f":
                values.append(numbers[data["fields"][left]])
            case "k":
                values.append(left)
            case "+":
                values.append(x + y)
            case "-":
                values.append(x - y)
            case "*":
                values.append(x * y)
            case "c":
                values.append(-(-x // y))
            case "p":
                values.append(int(x > 0))
            case "m":
                values.append(max(x, y))
    return values[whole]
