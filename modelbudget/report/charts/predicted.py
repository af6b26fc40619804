"""Predictions along each axis of their grid: range of totals, and mean shares."""

from typing import Any

import altair as alt
import polars as pl

from modelbudget.components.groups import GROUPS
from modelbudget.report.charts import theme
from modelbudget.report.charts.budget import evenly_spaced, least_and_most
from modelbudget.report.charts.format import UNITS, count, percent, short

MOST_VALUES = 60
FEW = 8
"""Up to this number of values an axis has bars; with more it has a band."""
COLUMNS = 3
MARGIN = 52
"""Width in pixels of a vertical axis."""


def predicted_charts(totals: pl.DataFrame, shares: pl.DataFrame) -> dict[str, alt.TopLevelMixin]:
    """Return charts by name from the tables of `predict/axis_summary.py`.

    Axes with one value are left out.
    """
    moving = totals.group_by("axis", maintain_order=True).agg(pl.col("index").n_unique())
    axes = moving.filter(pl.col("index") > 1)["axis"].to_list()
    found = {}
    if not axes:
        return found
    for quantity in UNITS:
        rows = totals.filter(pl.col("quantity") == quantity)
        if not rows.is_empty() and not (quantity == "parameter_bytes" and "totals" in found):
            name = "totals" if quantity == "parameters" else f"{quantity.replace('_', '-')}-totals"
            found[name] = totals_along_axes(rows, axes, quantity)
    if shares["group"].n_unique() > 1:
        found["shares"] = shares_along_axes(shares, axes)
    return found


def totals_along_axes(totals: pl.DataFrame, axes: list[str], quantity: str) -> alt.ConcatChart:
    """Draw minimum, maximum and geometric mean of the totals at each value of each axis."""
    drawn = [_range(_along(totals, axis), axis, len(axes), quantity) for axis in axes]
    first = totals.filter(pl.col("axis") == axes[0])
    low, high = least_and_most(first, "least", "most")
    finding = (
        f"{count(sum(first['models']))} predictions, from {short(low)} to "
        f"{short(high)} {UNITS[quantity]}. Each panel shows one axis over all "
        "values of the others: the band is from minimum to maximum, the line is the geometric mean."
    )
    columns = min(len(axes), COLUMNS)
    title = f"Predicted {UNITS[quantity]} along each axis"
    return theme.framed(theme.panels(drawn, columns), title, finding, MARGIN, columns)


def shares_along_axes(shares: pl.DataFrame, axes: list[str]) -> alt.ConcatChart:
    """Draw the mean share of each group at each value of each axis."""
    groups = [group for group in GROUPS if group in shares["group"]]
    ranks = pl.DataFrame({"group": groups, "rank": range(len(groups))})
    ranked = shares.join(ranks, on="group").sort("rank")
    drawn = [_stack(_along(ranked, axis), axis, len(axes), groups) for axis in axes]
    columns = min(len(axes), COLUMNS)
    title = "Predicted mean share of the parameters by component along each axis"
    finding = _largest_change(shares, axes)
    return theme.framed(theme.panels(drawn, columns), title, finding, MARGIN, columns, groups)


def _along(table: pl.DataFrame, axis: str) -> pl.DataFrame:
    """Return the rows of one axis at evenly spaced values; integers as numbers."""
    rows = table.filter(pl.col("axis") == axis)
    kept = evenly_spaced(rows["index"].unique().sort().to_list(), MOST_VALUES)
    sizes = rows["value"].str.contains(r"^\d+$").all()
    value = pl.col("value").cast(pl.Int64) if sizes else pl.col("value")
    return rows.filter(pl.col("index").is_in(kept)).with_columns(value).drop("axis")


def _is_band(rows: pl.DataFrame) -> bool:
    return rows["value"].dtype.is_integer() and rows["value"].n_unique() > FEW


def _x(rows: pl.DataFrame, axis: str) -> alt.X:
    if not _is_band(rows):
        in_order = rows.sort("index")["value"].unique(maintain_order=True).to_list()
        plain = alt.Axis(labelAngle=0, ticks=False, grid=False, labelExpr=_LABEL)
        return alt.X("value:O", title=axis, sort=in_order, axis=plain)
    low, high = least_and_most(rows, "value")
    logarithmic = low >= 1 and high > 20 * low
    ticks: dict[str, Any] = theme.ticks(low, high) if logarithmic else {"tickCount": 4}
    linear = alt.Scale(nice=False, zero=False)
    scale = alt.Scale(type="log", nice=False) if logarithmic else linear
    marks = alt.Axis(grid=False, labelExpr=theme.EXACT, **ticks)
    return alt.X("value:Q", title=axis, scale=scale, axis=marks)


_LABEL = f"isNumber(datum.value) ? ({theme.EXACT}) : datum.label"


def _range(rows: pl.DataFrame, axis: str, panels: int, quantity: str) -> theme.Layers:
    low, high = least_and_most(rows, "least", "most")
    # Fixed extent: panels of one figure line up, and the pixels outside the axes are known.
    scale = alt.Scale(type="log", nice=False, domain=[max(1, low), max(2, high)])
    marks = alt.Axis(
        minExtent=42, maxExtent=42, labelExpr=theme.tick_labels(quantity), **theme.ticks(low, high)
    )
    tooltip = [
        alt.Tooltip("value", title=axis),
        alt.Tooltip("models:Q", format=",", title="predictions"),
        alt.Tooltip("least:Q", format=",.0f", title="minimum"),
        alt.Tooltip("typical:Q", format=",.0f", title="geometric mean"),
        alt.Tooltip("most:Q", format=",.0f", title="maximum"),
    ]
    drawn = rows.filter(pl.col("least") > 0).select(
        "index", "value", "models", "least", "typical", "most"
    )
    base = alt.Chart(drawn).encode(x=_x(rows, axis), tooltip=tooltip)
    y = alt.Y("least:Q", title=None, scale=scale, axis=marks)
    typical = alt.Y("typical:Q", title=None, scale=scale, axis=marks)
    if _is_band(rows):
        layers = [
            base.mark_area(color=theme.SOFT, opacity=0.25).encode(y=y, y2="most:Q"),
            base.mark_line(color=theme.INK, strokeWidth=1.5).encode(y=typical),
        ]
    else:
        layers = [
            base.mark_bar(color=theme.SOFT, opacity=0.25).encode(y=y, y2="most:Q"),
            base.mark_tick(color=theme.INK, thickness=1.5).encode(y=typical),
        ]
    return alt.layer(*layers).properties(
        width=theme.panel_width(min(panels, COLUMNS), MARGIN), height=200
    )


def _stack(rows: pl.DataFrame, axis: str, panels: int, groups: list[str]) -> alt.Chart:
    base = alt.Chart(rows.select("index", "value", "group", "rank", "share"))
    mark = base.mark_area if _is_band(rows) else base.mark_bar
    return (
        mark(stroke=theme.PAPER, strokeWidth=0.5)
        .encode(
            x=_x(rows, axis),
            y=alt.Y(
                "share:Q", title=None, scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(minExtent=42, maxExtent=42, format="%"),
            ),
            color=theme.colour(groups),
            order="rank:Q",
            tooltip=[
                alt.Tooltip("group:N", title="component"),
                alt.Tooltip("value", title=axis),
                alt.Tooltip("share:Q", format=".2%", title="mean share"),
            ],
        )
        .properties(width=theme.panel_width(min(panels, COLUMNS), MARGIN), height=200)
    )  # fmt: skip


def _largest_change(shares: pl.DataFrame, axes: list[str]) -> str:
    """Describe the largest change of a mean share between the ends of an axis."""
    ends = (
        shares.filter(pl.col("axis").is_in(axes)).sort("index")
        .group_by("axis", "group", maintain_order=True)
        .agg(pl.col("value", "share").first().name.prefix("first "),
             pl.col("value", "share").last().name.prefix("last "))
        .with_columns(change=(pl.col("last share") - pl.col("first share")).abs())
        .sort("change", "axis", "group", descending=True)
    )  # fmt: skip
    most = ends.row(0, named=True)
    return (
        f"Over all values of the other axes, the mean share of {most['group']} changes from "
        f"{percent(most['first share'])} at {most['axis']} = {_shown(most['first value'])} to "
        f"{percent(most['last share'])} at {_shown(most['last value'])}."
    )


def _shown(value: str) -> str:
    return count(int(value)) if value.isdecimal() else value
