"""Predictions along each axis of their grid: range of totals, and shares on a slice.

On a slice all other axes have their middle value: each of its points is a model, never a mean.
"""

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, count
from modelbudget.report.charts import theme
from modelbudget.report.charts.area_chart import HEIGHT_OF_SHARES, in_order, stack
from modelbudget.report.charts.chart_tables import RANK, groups_in, least_and_most, some_values
from modelbudget.report.charts.component_charts import name_of
from modelbudget.sweeps.fields_in_words import UNITS, amount, brief, value_of

MOST_VALUES = 40
MARGIN, HEIGHT = 52, 200
"""Width in pixels of a vertical axis, and height of a panel of ranges."""


def predicted_charts(totals: pl.DataFrame, shares: pl.DataFrame) -> dict[str, alt.TopLevelMixin]:
    """Return charts by name from the tables of `predict/axis_summary.py`.

    Axes with one value are left out.
    """
    moving = totals.group_by("axis", maintain_order=True).agg(pl.col("index").n_unique())
    axes = moving.filter(pl.col("index") > 1)["axis"].to_list()
    charts = {}
    if not axes:
        return charts
    if shares["group"].n_unique() > 1:
        of_axes = shares.filter(pl.col("axis").is_in(axes))
        charts["shares"] = shares_along_axes(of_axes, _held(totals))
    for quantity in (unit for unit in UNITS if unit in totals["quantity"]):
        if quantity == "parameter_bytes" and "totals" in charts:
            continue
        drawn = totals_along_axes(totals.filter(quantity=quantity), axes, quantity)
        charts[name_of(quantity, "totals")] = drawn
    return charts


def totals_along_axes(totals: pl.DataFrame, axes: list[str], quantity: str) -> alt.ConcatChart:
    """Draw the minimum and maximum of the totals, and the slice, along each axis."""
    drawn = [(None, _range(_along(totals, axis), axis, quantity)) for axis in axes]
    first = totals.filter(pl.col("axis") == axes[0])
    low, high = least_and_most(first, "least", "most")
    finding = (
        f"The {count(sum(first['models']))} models have {brief(low, quantity)} to "
        f"{amount(high, quantity)}. Bars: from minimum to maximum over all values of the other "
        "axes."
    )
    if totals["slice"].count():
        finding += f" Marks: all other axes have their middle value: {_held(totals)}."
    title = f"Predicted {UNITS[quantity]} along each axis"
    return theme.panels(drawn, HEIGHT, title, finding, MARGIN)


def shares_along_axes(shares: pl.DataFrame, middle: str) -> alt.ConcatChart:
    """Draw the share of each group on the slice along each axis; `middle` is the slice as text."""
    ranked = shares.with_columns(rank=RANK).sort("rank")
    groups = groups_in(ranked)
    axes = shares["axis"].unique(maintain_order=True).to_list()
    drawn = [
        ("", stack(_along(ranked, axis).rename({"value": axis}), axis, groups, len(axes)))
        for axis in axes
    ]
    finding = f"{_leaders(ranked, axes)} All other axes have their middle value: {middle}."
    title = "Predicted parameters by component along each axis"
    return theme.panels(drawn, HEIGHT_OF_SHARES, title, finding, MARGIN, groups)


def _held(totals: pl.DataFrame) -> str:
    """Return the middle values of all axes as text."""
    middle = totals.filter("is_middle").unique("axis", keep="first", maintain_order=True)
    return ", ".join(
        value_of(axis, {"true": True, "false": False}.get(value, _shown(value)))
        for axis, value in middle.select("axis", "value").rows()
    )


def _along(table: pl.DataFrame, axis: str) -> pl.DataFrame:
    """Return the rows of one axis at evenly spaced values; integers as numbers."""
    rows = some_values(table.filter(axis=axis), "index", MOST_VALUES).drop("axis")
    is_size = rows["value"].str.contains(r"^\d+$").all()
    return rows.with_columns(pl.col("value").cast(pl.Int64)) if is_size else rows


def _range(rows: pl.DataFrame, axis: str, quantity: str) -> theme.Layers:
    low, high = least_and_most(rows, "least", "most")
    scale = alt.Scale(type="log", nice=False, domain=[max(1, low), max(2, high)])
    marks = theme.vertical(labelExpr=theme.tick_labels(quantity), **theme.ticks(low, high))
    tooltip = theme.tooltip(
        {"value": axis},
        {"models": "predictions", "least": "minimum", "slice": "at the mark", "most": "maximum"},
    )
    drawn = rows.filter(pl.col("least") > 0).select("value", "models", "least", "slice", "most")
    x = in_order("value", rows.sort("index"), axis)
    base = alt.Chart(drawn).encode(x=x, tooltip=tooltip)
    least, on_slice = (
        alt.Y(f"{name}:Q", title=None, scale=scale, axis=marks) for name in ("least", "slice")
    )
    return alt.layer(
        base.mark_bar(color=theme.SOFT, opacity=0.25).encode(y=least, y2="most:Q"),
        base.mark_tick(color=theme.INK, thickness=1.5).encode(y=on_slice),
    )


def _leaders(shares: pl.DataFrame, axes: list[str]) -> str:
    """Describe the largest group along each axis, and where it changes."""
    leaders = []
    for axis in axes:
        most = (
            shares.filter(pl.col("axis") == axis).sort("index", "share")
            .unique("index", keep="last", maintain_order=True)
        )  # fmt: skip
        changes = most.filter(pl.col("group") != pl.col("group").shift(fill_value=""))
        rows = changes.select("group", "value").rows()
        if len(rows) > 1:
            later = "".join(f", then {group} from {_shown(value)} on" for group, value in rows[1:])
            leaders.append(f"along {axis} {'is' if not leaders else 'it is'} {rows[0][0]}{later}")
    if not leaders:
        most = shares.sort("share")["group"][-1]
        return f"{capitalized(most)} is the largest part along every axis."
    return f"The largest part {'; '.join(leaders)}."


def _shown(value: str) -> str:
    return count(int(value)) if value.isdecimal() else value
