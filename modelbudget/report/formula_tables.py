"""Tables of one point: the formula of each component with its predicted and measured numbers."""

import polars as pl
from markupsafe import Markup, escape

from modelbudget.architecture.evaluators import symbols
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms
from modelbudget.compare.comparison import FORMULA
from modelbudget.components.groups import group_of
from modelbudget.families import families
from modelbudget.predict.formula import formula
from modelbudget.report import tables
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import percent
from modelbudget.report.component_order import sort_key

_COLUMNS = ("component", "formula", "predicted", "measured", "share")


def formulas(point: dict, quantity: str = "parameters", varying=()) -> Terms:
    """Return the terms of a quantity as SymPy expressions, for a row of points.parquet.

    Sizes become symbols. Fields that decide which parts the model has, and categorical run
    settings, have their values, unless they are in `varying`.
    """
    family = families()[point["family"]]
    a, r = (
        symbols.namespace(
            record,
            {name: point[name] for name in record.categorical()},
            {n: v for n, v in symbols.settled(record, point).items() if n not in varying},
        )
        for record in (family, RunConfig)
    )
    terms, _ = formula(family, quantity, a, r)
    return {
        name: Term(symbols.answered(term.each, point), symbols.answered(term.instances, point))
        for name, term in terms.items()
    }


def component_rows(
    point: dict, comparison: pl.DataFrame, quantity: str = "parameters", with_numbers: bool = False
) -> list[dict]:
    """Return one row for each component of a quantity, in the order of `component_order`.

    `comparison` has the rows of this point. `with_numbers` adds each formula with its numbers.
    """
    by_component = {
        row["component"]: row
        for row in comparison.filter(pl.col("quantity") == quantity).iter_rows(named=True)
    }
    known = any(row["prediction"] == FORMULA for row in by_component.values())
    terms = formulas(point, quantity) if known else {}
    order = [name for name in terms if name in by_component] + [
        n for n in by_component if n not in terms
    ]
    order.sort(key=sort_key)
    total = sum(row["measured"] or 0 for row in by_component.values())
    return [
        _row(by_component[name], terms.get(name), point if with_numbers else None, total)
        for name in order
    ]


def _row(row: dict, term: Term | None, values: dict | None, total: int) -> dict:
    text = ""
    if term is not None and row["predicted"]:
        text = symbols.to_mathml(term)
        if values:
            text += f'<span class="substituted">= {symbols.to_mathml(term, values)}</span>'
    return {
        "component": component_name(row["component"], row["shared_with"]),
        "formula": Markup(text),
        "predicted": row["predicted"],
        "measured": row["measured"],
        "share": percent((row["measured"] or 0) / total) if total else None,
        "agrees": row["agrees"] is not False,  # None where it was not compared
        "whole": False,
    }


def component_table(rows: list[dict], caption: str) -> Markup:
    """Return the table of a model's rows, and of their totals if there are several."""
    if len(rows) > 1:
        sums = {side: sum(row[side] or 0 for row in rows) for side in ("predicted", "measured")}
        agrees = all(row["agrees"] for row in rows)
        texts = {"component": "all", "formula": "", "share": "100 %", "whole": True}
        rows = [*rows, texts | sums | {"agrees": agrees}]
    return tables.table(
        [{name: row[name] for name in _COLUMNS} for row in rows],
        caption,
        ("predicted", "measured", "share"),
        red=[not row["agrees"] for row in rows],
        whole=[row["whole"] for row in rows],
    )


def component_name(component: str, shared_with: str | None = None) -> Markup:
    """Return a component with the colour of its group, and the component that owns its tensor."""
    swatch = f'<i class="swatch {variable_of_group(group_of(component))}"></i>'
    owner = f" <small>tied to {escape(shared_with)}</small>" if shared_with else ""
    return Markup(f'<code class="name">{swatch}{escape(component)}</code>{owner}')
