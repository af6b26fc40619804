"""Charts whose axes a sweep chooses, and one of every point of a grid with many axes."""

from typing import Any, Literal

import altair as alt
import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.compare.comparison import value
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import most_and_least
from modelbudget.report.charts.component_charts import DRAWN, name_of
from modelbudget.report.charts.format import (
    UNITS,
    capitalized,
    count,
    field_title,
    value_of,
)
from modelbudget.report.charts.grouped_values import evenly_spaced, least_and_most, values
from modelbudget.report.charts.heatmaps import MOST_VALUES
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

EVERY = "every-point"
WHOLE = (
    "peak_training_bytes", "peak_inference_bytes", "optimizer_bytes", "request_bytes",
    "flops_decode",
)  # fmt: skip
"""Quantities of a grid that have a chart of every point where no other chart shows them."""
SHOWN_BY = {
    "devices": {*WHOLE},
    "peak-parts": {"peak_training_bytes", "optimizer_bytes"},
    "inference-parts": {"peak_inference_bytes", "flops_decode"},
    "checkpointing": {"peak_training_bytes"},
}
"""What charts of several quantities show of these."""
MARGIN = 62
COLUMNS = 3
MOST_PANELS, MOST_LINES, MOST_POINTS = 12, 12, 2_000
LOGARITHMIC_FROM = 16
"""Ratio of the largest to the smallest number from which on an axis is logarithmic."""


def _chosen(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Return the charts of a sweep's key `charts`, by name."""
    charts = {}
    for i, choice in enumerate(tables.summary["charts"], start=1):
        y = choice["y"] or tables.summary["measure"]["quantities"][0]
        rows = _amounts(tables.comparison, y)
        if not rows.is_empty():
            charts[f"chosen-{i}"] = _chart(rows, y, choice["x"], choice["colour"], choice["facet"])
    return charts


def _of_points(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Draw each point of a grid, of quantities and of values that no other chart shows.

    A sweep that chooses its charts, or its answer, has of the quantities those that it names.
    """
    shown = set[str]().union(*(SHOWN_BY.get(name, ()) for name in tables.drawn))
    answers = tables.summary.get("answered_by", ())
    is_free = not answers and not any(name.startswith("chosen-") for name in tables.drawn)
    of_grid = tables.varying if tables.axes else ()
    whole = [name for name in WHOLE if name in of_grid and name not in shown]
    quantities = {
        name_of(one, EVERY): one for one in whole if is_free or name_of(one, EVERY) in answers
    }
    if tables.measured and "devices" not in tables.drawn and _has_hidden_values(tables):
        quantities[EVERY] = next(
            (one for one in DRAWN if one in tables.measured), min(tables.measured)
        )
    return {name: _every_point(tables, quantity) for name, quantity in quantities.items()}


def _has_hidden_values(tables: SweepTables) -> bool:
    """Return whether some values of a grid are in no other chart.

    Others hold a third axis at its middle value, and leave out values of an axis that has many.
    """
    moving = tables.moving
    has_many = any(len(values(tables.comparison, field)) > MOST_VALUES for field in moving)
    return len(moving) > 2 or (len(moving) == 2 and has_many)


def _every_point(tables: SweepTables, quantity: str) -> alt.ConcatChart:
    """Draw each point of a grid, so that every value of every axis is in a chart.

    The size with most values is the horizontal axis; the field with fewest values has panels, and
    the next one a line for each value. Lines of all other fields stand in one panel.
    """
    rows = _amounts(tables.comparison, quantity)
    by_number = sorted(tables.moving, key=lambda field: len(values(rows, field)))
    sizes = [field for field in by_number if rows[field].dtype.is_integer()]
    x = sizes[-1] if sizes else by_number[-1]
    fields = [field for field in by_number if field != x]
    facet, colour = (*fields, None, None)[:2]
    return _chart(rows, quantity, x, colour, facet, tuple(fields[2:]))


CHOSEN = Chart(_chosen, lambda tables: bool(tables.summary.get("charts")) and not tables.solved)
EVERY_POINT = Chart(_of_points, lambda tables: not tables.solved)


def _amounts(comparison: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """Return one row for each point: its fields, and the amount of a quantity."""
    of_point = comparison.columns[: comparison.columns.index("component")]
    largest = pl.col("value").max() if is_peak(quantity) else pl.col("value").sum()
    return (
        comparison.filter(pl.col("quantity") == quantity)
        .with_columns(value=value())
        .drop_nulls("value")
        .group_by(of_point, maintain_order=True)
        .agg(value=largest)
    )


def _chart(
    rows: pl.DataFrame,
    quantity: str,
    x: str,
    colour: str | None,
    facet: str | None,
    apart: tuple[str, ...] = (),
) -> alt.ConcatChart:
    """Draw an amount along a field; lines of other fields `apart` are not joined."""
    kept = rows
    for field, most in ((facet, MOST_PANELS), (colour, MOST_LINES)):
        if field is not None:
            kept = kept.filter(pl.col(field).is_in(evenly_spaced(values(kept, field), most)))
    room = max(2, MOST_POINTS * len(values(kept, x)) // max(1, kept.height))
    kept = kept.filter(pl.col(x).is_in(evenly_spaced(values(kept, x), room)))
    titles = [value_of(facet, option) for option in values(kept, facet)] if facet else [""]
    tables = (
        [kept.filter(pl.col(facet) == option) for option in values(kept, facet)]
        if facet
        else [kept]
    )
    columns = min(COLUMNS, len(tables))
    width = theme.panel_width(columns, MARGIN)
    line = pl.concat_str([pl.col(field).cast(pl.String) for field in apart] or [pl.lit("")])
    encoded: dict[str, Any] = {"x": _x(kept, x), "y": _y(kept, quantity)}
    if colour is not None:
        domain = [_text(colour, option) for option in values(kept, colour)]
        shades = [round(0.25 + 0.75 * i / max(1, len(domain) - 1), 2) for i in range(len(domain))]
        scale = alt.Scale(domain=domain, range=shades)
        encoded["opacity"] = alt.Opacity(
            "shade:O", scale=scale, legend=alt.Legend(title=colour, columns=2)
        )
        shade = pl.col(colour).map_elements(lambda option: _text(colour, option), pl.String)
        tables = [table.with_columns(shade=shade) for table in tables]
    drawn = [
        alt.layer(*_marks(table.with_columns(line=line), x, quantity, encoded)).properties(
            title=theme.panel_title(title, width), width=width, height=220
        )
        for title, table in zip(titles, tables, strict=True)
    ]
    title = f"{capitalized(UNITS[quantity])} by {', '.join(filter(None, (x, colour, facet)))}"
    chart = theme.panels(drawn, columns).resolve_scale(opacity="shared")
    return theme.framed(chart, title, most_and_least(rows, quantity), MARGIN, columns)


def _marks(table: pl.DataFrame, x: str, quantity: str, encoded: dict) -> list[alt.Chart]:
    names = [name for name in ("shade",) if name in table.columns]
    base = alt.Chart(table.select("label", x, "value", "line", *names)).encode(**encoded)
    tooltip = theme.tooltip({"label": "model"}, {"value": UNITS[quantity]})
    layers = [base.mark_point(color=theme.INK, filled=True, size=24).encode(tooltip=tooltip)]
    if table[x].dtype.is_integer():
        lines = base.mark_line(color=theme.INK, strokeWidth=1.5)
        layers.insert(0, lines.encode(detail="line:N"))
    return layers


def _x(rows: pl.DataFrame, field: str) -> alt.X:
    if not rows[field].dtype.is_integer():
        order = [_text(field, option) for option in values(rows, field)]
        return alt.X(f"{field}:N", title=field_title(field), sort=order)
    low, high = least_and_most(rows, field)
    scale = alt.Scale(type=_scale(low, high), nice=False, domain=[low, high])
    axis = alt.Axis(grid=False, labelExpr=theme.EXACT, values=values(rows, field))
    return alt.X(f"{field}:Q", title=field_title(field), scale=scale, axis=axis)


def _y(rows: pl.DataFrame, quantity: str) -> alt.Y:
    low, high = least_and_most(rows, "value")
    scale = _scale(low, high)
    ticks: dict[str, Any] = theme.ticks(low, high) if scale == "log" else {"tickCount": 5}
    return alt.Y(
        "value:Q",
        title=UNITS[quantity],
        # Panels of one chart have one scale, so that they can be compared.
        scale=alt.Scale(type=scale, domain=[low if scale == "log" else 0, high or 1], nice=True),
        axis=theme.vertical(labelExpr=theme.tick_labels(quantity), **ticks),
    )


def _scale(low: int, high: int) -> Literal["log", "linear"]:
    return "log" if low > 0 and high / low >= LOGARITHMIC_FROM else "linear"


def _text(field: str, option) -> str:
    if isinstance(option, bool):
        return value_of(field, option)
    return count(option) if isinstance(option, int) else str(option)
