"""The formula of each component of one point, beside its numbers."""

import polars as pl
from markupsafe import Markup, escape

from modelbudget.charts.groups import group_of
from modelbudget.charts.words import percent
from modelbudget.families import families
from modelbudget.readings import symbols
from modelbudget.report.specs import variable_of_group
from modelbudget.terms import Terms


def formulas(point: dict) -> Terms:
    """Terms of a row of points.parquet over symbols for its sizes, with its switches put in."""
    family = families()[point["family"]]
    switches = {
        name: point[name] for name in family.sizes() if family.model_fields[name].annotation is bool
    }
    words = {name: point[name] for name in family.words()}
    return family.parameters(symbols.namespace(family, words, switches))


def component_rows(point: dict, comparison: pl.DataFrame, with_numbers: bool = False) -> list[dict]:
    """One row for each component of a point's parameters, in the order of its formulas; then all.

    `comparison` holds the rows of this point. `with_numbers` adds the formula with its numbers.
    """
    terms = formulas(point)
    sizes = {name: point[name] for name in families()[point["family"]].sizes()}
    found = {
        row["component"]: row
        for row in comparison.filter(pl.col("quantity") == "parameters").iter_rows(named=True)
    }
    order = [name for name in terms if name in found] + [n for n in found if n not in terms]
    predicted, measured = (
        sum(row[side] or 0 for row in found.values()) for side in ("predicted", "measured")
    )
    rows = []
    for name in order:
        row = found[name]
        shown = name in terms and row["predicted"]
        numbers = {"with numbers": Markup(symbols.to_mathml(terms[name], sizes)) if shown else ""}
        rows.append(
            {
                "component": _name(name, row["shared_with"]),
                "formula": Markup(symbols.to_mathml(terms[name])) if shown else "",
                **(numbers if with_numbers else {}),
                "predicted": row["predicted"],
                "counted": row["measured"],
                "share": percent((row["measured"] or 0) / measured) if measured else "–",
                "agrees": bool(row["agrees"]),
            }
        )
    whole = dict.fromkeys(rows[0], "") if rows else {}
    whole |= {"component": Markup("all"), "predicted": predicted, "counted": measured}
    whole |= {"share": "100 %", "agrees": predicted == measured}
    return [*rows, whole]


def _name(component: str, shared_with: str | None) -> Markup:
    swatch = f'<i class="swatch {variable_of_group(group_of(component))}"></i>'
    owner = f" <small>matrix of {escape(shared_with)}</small>" if shared_with else ""
    return Markup(f"{swatch}<code>{escape(component)}</code>{owner}")
