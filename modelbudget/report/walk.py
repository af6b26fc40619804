"""A walk through small models: each as torch prints it, and its count as one does it on paper."""

import inspect

import polars as pl

from modelbudget.charts.words import count
from modelbudget.families import families
from modelbudget.report import formulas
from modelbudget.report.results import SweepResult


def steps(sweep: SweepResult, points: pl.DataFrame, printed: dict[str, str]) -> list[dict]:
    """One step for each point: what it is, its module, its components with the numbers put in."""
    rows = points.iter_rows(named=True)
    return [_step(sweep, number, point, printed) for number, point in enumerate(rows, start=1)]


def _step(sweep: SweepResult, number: int, point: dict, printed: dict[str, str]) -> dict:
    label = point["label"]
    rows = formulas.component_rows(point, sweep.of_point(point), with_numbers=True)
    table = [*rows, formulas.whole("all", rows)] if len(rows) > 1 else rows
    return {
        "id": f"{sweep.name}-{number}",
        "label": label,
        "count": count(point["total"]),
        "says": inspect.getdoc(families()[point["family"]]).splitlines()[0],
        "module": printed[point["architecture"]],
        "table": formulas.component_table(table, f"Components of {label}"),
    }
