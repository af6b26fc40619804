"""The formulas in a sweep's table: one for each component, with symbols for the swept fields."""

from collections.abc import Sequence

import polars as pl
import sympy

from modelbudget.architecture.evaluators import symbols
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, is_peak
from modelbudget.families import families
from modelbudget.predict.formula import formula


def general_formulas(points: pl.DataFrame, quantities: Sequence[str]) -> list[dict]:
    """Return the formulas of each group of points with equal categorical fields.

    A group has `points`, and `formulas` as MathML by quantity and component. Peaks are left out:
    they are the maximum of about a hundred sums.
    """
    wanted = [quantity for quantity in quantities if not is_peak(quantity)]
    groups = []
    for (name,), of_family in points.partition_by("family", as_dict=True).items():
        fields = [*families()[name].categorical(), *RunConfig.categorical()]
        for alike in of_family.partition_by(fields):
            formulas = {quantity: _formulas(alike, quantity) for quantity in wanted}
            groups.append({"points": alike["point"].to_list(), "formulas": formulas})
    return groups


def _formulas(points: pl.DataFrame, quantity: str) -> dict[str, str]:
    family = families()[points["family"][0]]
    terms, _ = formula(family, quantity, *(_symbols(one, points) for one in (family, RunConfig)))
    return {
        component: _mathml(term, points) for component, term in terms.items() if term.total != 0
    }


def _symbols(record, points: pl.DataFrame):
    """Return symbols for sizes, and values for fields that decide which parts all models have."""
    row = points.row(0, named=True)
    constant = {name for name in record.numeric() if points[name].n_unique() == 1}
    settled = {k: v for k, v in symbols.settled(record, row).items() if k in constant}
    return symbols.namespace(record, {name: row[name] for name in record.categorical()}, settled)


def _mathml(term: Term, points: pl.DataFrame) -> str:
    return symbols.to_mathml(Term(*(_answered(value, points) for value in term)))


def _answered(value, points: pl.DataFrame):
    """Replace conditions on sizes by their value if it is the same for all points."""

    def answer(part):
        sizes = sorted(part.free_symbols, key=str)
        rows = points.select(size.name for size in sizes).unique().iter_rows()
        answers = {part.subs(zip(sizes, row, strict=True)) for row in rows}
        return answers.pop() if len(answers) == 1 else part

    return sympy.sympify(value).replace(lambda part: isinstance(part, symbols.CONDITIONS), answer)
