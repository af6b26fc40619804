"""A quantity by component, by the axes of a sweep: along a size, over two, or model by model."""

import math

import altair as alt
import polars as pl

from modelbudget.report.charts.area_chart import first_and_last, over_axes, shares_along
from modelbudget.report.charts.bar_chart import bars_of_models, is_shared
from modelbudget.report.charts.chart_tables import SweepTables, budget, by_value, totals, values
from modelbudget.sweeps.fields_in_words import value_of

SIDE_BY_SIDE = 3
"""A size with up to this number of values is split into panels; with more it is an axis."""
MOST_PANELS = 4
DRAWN = ("parameters", "activation_bytes", "cache_bytes", "flops_forward")
"""Quantities with charts by component. Gradients and optimizer state are distributed as
parameters, and a backward pass as a forward pass, so they have none.
"""


def of_sweep(tables: SweepTables) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of each quantity by component: of a grid those that vary, if any does."""
    shown = tables.varying if tables.axes and tables.varying else tables.measured
    # What a device computes of its own sequences does not depend on their number.
    constant = {"activation_bytes", "flops_forward"} if tables.is_of_devices else set()
    return {
        name_of(quantity, name): chart
        for quantity in DRAWN
        if quantity in shown - constant
        for name, chart in charts(tables.axes, tables.comparison, quantity).items()
    }


def name_of(quantity: str, chart: str) -> str:
    """Return the name of a chart of a quantity: that of parameters has no prefix."""
    return chart if quantity == "parameters" else f"{quantity.replace('_', '-')}-{chart}"


def charts(
    axes: dict[str, list], comparison: pl.DataFrame, quantity: str = "parameters"
) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of one quantity by name.

    `axes` maps the fields of the grid to their values, in the order of the file. A grid gets shares
    along its first size axis, at some values of the second if there is one, and the total at each
    point. Boolean and categorical fields, and sizes with few values, become panels of shares, in
    which remaining axes are fixed at their middle values. Points listed one by one get a bar each,
    some of them if there are many.
    """
    table = budget(comparison, quantity)
    # Points are numbered as the sweep file gives them: the grid's first, then those one by one.
    in_grid = pl.col("point").cast(pl.Int64) <= math.prod(map(len, axes.values())) * bool(axes)
    grid, listed = table.filter(in_grid), table.filter(~in_grid)
    return _of_grid(grid, list(axes), quantity) | _one_by_one(listed, quantity)


def _one_by_one(table: pl.DataFrame, quantity: str) -> dict[str, alt.TopLevelMixin]:
    return {} if table.is_empty() else {"models": bars_of_models(table, quantity)}


def _of_grid(table: pl.DataFrame, fields: list[str], quantity: str) -> dict:
    moving = [field for field in fields if len(values(table, field)) > 1]
    sizes = [field for field in moving if table[field].dtype.is_integer()]
    long = [field for field in sizes if len(values(table, field)) > SIDE_BY_SIDE] or sizes[:1]
    if not long:
        return _one_by_one(table, quantity)
    main, *second = long[:2]
    others = [field for field in moving if field not in (main, *second)]
    panels = _panels(table, [*others, *second])
    finding = "" if second else first_and_last(panels, main, quantity)
    of_points = totals(table).rename({"total": "value"})
    drawn = {"total": over_axes(of_points, quantity, moving, finding)}
    if second or is_shared(table):
        drawn = {"shares": shares_along(table, main, panels, quantity)} | drawn
    return drawn


def _panels(table: pl.DataFrame, axes: list[str]) -> dict[str, pl.DataFrame]:
    """Split the table by the first of these axes, at some of its values; fix the others."""
    split, fixed = (axes[0], axes[1:]) if axes else (None, [])
    most = MOST_PANELS if split and not table[split].dtype.is_integer() else SIDE_BY_SIDE
    panels = {}
    for title, rows in by_value(table, split, most).items():
        at, kept = _held(rows, fixed)
        panels[", ".join(filter(None, (title, at)))] = kept
    return panels


def _held(table: pl.DataFrame, fields: list[str]) -> tuple[str, pl.DataFrame]:
    """Return the points at one combination of these fields, and that combination as text.

    It is the middle one of the combinations that have most points.
    """
    if not fields:
        return "", table
    sizes = table.group_by(fields).agg(points=pl.col("point").n_unique()).sort(fields)
    fullest = sizes.filter(pl.col("points") == pl.col("points").max())
    chosen = fullest.select(fields).row(fullest.height // 2, named=True)
    text = ", ".join(value_of(field, value) for field, value in chosen.items())
    return text, table.filter(*(pl.col(field) == value for field, value in chosen.items()))
