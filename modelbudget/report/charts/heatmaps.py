"""Heatmaps over two axes of a sweep: the total of a quantity, and the share of one group."""

from operator import itemgetter

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.format import (
    UNITS,
    amount,
    count,
    field_title,
    percent,
    times,
    value_of,
)
from modelbudget.report.charts.grouped_values import distinct, thinned, totals

MARGIN = 58
"""Width in pixels of a vertical axis with its title."""
MOST_VALUES = 40
"""Most rows and columns of a heatmap: with more, cells are too small to point at."""


def total_over(x: str, y: str, panels: dict[str, pl.DataFrame], quantity: str) -> alt.ConcatChart:
    """Draw the total at each pair of values, on a logarithmic colour scale."""
    tables = distinct({title: totals(rows) for title, rows in panels.items()}, x, y, "total")
    unit = UNITS[quantity]
    (low, at_low), (high, at_high) = _ends(x, y, tables, "total")
    finding = (
        f"The largest total, {amount(high, quantity)} ({at_high}), is {times(high / low)} the "
        f"smallest, {amount(low, quantity)} ({at_low})."
        if high > low
        else f"All totals are {amount(high, quantity)}."
    )
    colour = alt.Color(
        "total:Q",
        scale=alt.Scale(type="log", scheme="viridis"),
        legend=_legend(unit, labelExpr=theme.tick_labels(quantity), **theme.ticks(low, high)),
    )
    return _heatmaps(x, y, tables, "total", colour, f"Total {unit} by {x} and {y}", finding)


def share_over(
    x: str, y: str, panels: dict[str, pl.DataFrame], groups: tuple[str, ...], quantity: str
) -> alt.ConcatChart:
    """Draw the share of one group, or of several together, at each pair of values."""
    of_groups = {title: share_of(rows, groups) for title, rows in panels.items()}
    tables = distinct(of_groups, x, y, "share")
    name = " and ".join(groups)
    colour = alt.Color(
        "share:Q",
        scale=alt.Scale(scheme="blues", domain=[0, 1]),
        legend=_legend(f"share of {name}", format="%", values=[0, 0.25, 0.5, 0.75, 1]),
    )
    (low, at_low), (high, at_high) = _ends(x, y, tables, "share")
    shares = pl.concat(rows["share"] for rows in tables.values())
    n_most = int((shares > 0.5).sum())
    finding = (
        f"{count(n_most)} of {count(len(shares))} models have more than half of the "
        f"{UNITS[quantity]} in {name}: the share is {percent(low)} ({at_low}) to "
        f"{percent(high)} ({at_high})."
    )
    title = f"Share of {name} in the {UNITS[quantity]}"
    return _heatmaps(x, y, tables, "share", colour, title, finding)


def share_of(table: pl.DataFrame, groups: tuple[str, ...]) -> pl.DataFrame:
    """Return one row for each point, with the sum of the shares of these groups."""
    together = (
        table.filter(pl.col("group").is_in(groups)).group_by("point").agg(pl.col("share").sum())
    )
    return totals(table).drop("share").join(together, on="point", maintain_order="left")


def _ends(x: str, y: str, tables: dict[str, pl.DataFrame], field: str) -> list[tuple]:
    """Return the minimum and the maximum of a field, each with its position as text."""
    rows = [
        (row[field], ", ".join(filter(None, (value_of(x, row[x]), value_of(y, row[y]), title))))
        for title, table in tables.items()
        for row in table.sort(field)[[0, -1]].iter_rows(named=True)
    ]
    return [min(rows, key=itemgetter(0)), max(rows, key=itemgetter(0))]


def _legend(title: str, **more) -> alt.Legend:
    return alt.Legend(title=title, gradientLength=240, gradientThickness=10, **more)


def _heatmaps(
    x: str, y: str, tables: dict, field: str, colour: alt.Color, title: str, finding: str
) -> alt.ConcatChart:
    columns = min(len(tables), 2)
    width = theme.panel_width(columns, MARGIN)
    drawn = [
        alt.Chart(thinned(thinned(rows, x, MOST_VALUES), y, MOST_VALUES).select(x, y, field))
        .mark_rect()
        .encode(
            x=alt.X(f"{x}:O", title=field_title(x), axis=_axis()),
            y=alt.Y(f"{y}:O", title=field_title(y), sort="descending", axis=_axis(minExtent=34)),
            color=colour,
            tooltip=theme.tooltip(
                {},
                {x: x, y: y} | ({"total": "total"} if field == "total" else {}),
                {} if field == "total" else {"share": "share"},
            ),
        )
        .properties(title=theme.panel_title(name, width), width=width, height=280)
        for name, rows in tables.items()
    ]
    return theme.framed(theme.panels(drawn, columns), title, finding, MARGIN, columns)


def _axis(**more) -> alt.Axis:
    return alt.Axis(labelExpr=theme.EXACT, labelAngle=0, ticks=False, domain=False, **more)
