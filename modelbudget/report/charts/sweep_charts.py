"""All charts of a sweep that is measured."""

from collections.abc import Iterable

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.common.errors import InputError
from modelbudget.report.charts.chosen import chosen_charts
from modelbudget.report.charts.frontier import solve_charts
from modelbudget.report.charts.layouts_of_devices import layouts_charts
from modelbudget.report.charts.published_models import zoo_charts
from modelbudget.report.charts.select import charts_of_classes, charts_of_sweep, is_of_whole


def sweep_charts(
    summary: dict,
    points: pl.DataFrame,
    comparison: pl.DataFrame,
    devices: list[Accelerator],
    *,
    traces: pl.DataFrame,
    zoo: pl.DataFrame | None,
    layouts: Iterable[pl.DataFrame],
    solved: list[pl.DataFrame],
) -> dict:
    """Return charts by name: of the comparison, and of each other table that the sweep has.

    `solved`: solutions, frontier and published models of a sweep with `solve`; otherwise empty.
    """
    if solved:
        solutions, frontier, published = solved
        charts = solve_charts(solutions, frontier, published, summary["solve"]["best"])
    else:
        charts = chosen_charts(summary, comparison)
        others = charts_of_sweep(summary["axes"], comparison, devices)
        answers = summary["answered_by"]
        has_choice = bool(charts or answers)
        charts |= {
            name: chart
            for name, chart in others.items()
            if name in answers or not (has_choice and is_of_whole(name))
        }
    if zoo is not None:
        charts |= zoo_charts(zoo, comparison)
    if not traces.is_empty():
        charts |= charts_of_classes(points, comparison, traces)
    for table in layouts:
        charts |= layouts_charts(table, devices)
    first = summary["answered_by"]
    for name in first:
        if name not in charts:
            allowed = ", ".join(charts) or "none"
            raise InputError([f"answered_by = {name!r}: no chart of the sweep; allowed: {allowed}"])
    return {name: charts[name] for name in (*first, *(n for n in charts if n not in first))}
