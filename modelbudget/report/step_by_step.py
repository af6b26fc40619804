"""Small models one by one: the module as torch prints it, and the count of each component."""

import inspect

import polars as pl
from markupsafe import Markup

from modelbudget.families import families
from modelbudget.report import formulas
from modelbudget.report.charts.format import count
from modelbudget.report.module_trees import could_not_be_built
from modelbudget.report.results import SweepResult


def steps(sweep: SweepResult, totals: pl.DataFrame, printed: dict[str, str | dict]) -> list[dict]:
    """Return one step for each point, with its module as text.

    A point that was measured (it is in `totals`) has a table of components with their numbers.
    """
    points = sweep.points.join(
        totals.select("point", "total"), on="point", how="left", maintain_order="left"
    )
    rows = points.iter_rows(named=True)
    return [_step(sweep, number, point, printed) for number, point in enumerate(rows, start=1)]


def _step(sweep: SweepResult, number: int, point: dict, printed: dict[str, str | dict]) -> dict:
    measured = point["total"] is not None
    module = printed[point["architecture"]]
    return {
        "id": f"{sweep.name}-{number}",
        "label": point["label"],
        "count": count(point["total"]) if measured else "not measured",
        "description": (inspect.getdoc(families()[point["family"]]) or "").partition("\n")[0],
        "module": module if isinstance(module, str) else could_not_be_built(module),
        "table": _table(sweep, point) if measured else None,
    }


def _table(sweep: SweepResult, point: dict) -> Markup:
    rows = formulas.component_rows(point, sweep.of_point(point), with_numbers=True)
    table = [*rows, formulas.whole("all", rows)] if len(rows) > 1 else rows
    return formulas.component_table(table, f"Components of {point['label']}")
