"""Resident memory of real processes: measured and predicted bytes, and their difference."""

import altair as alt
import polars as pl

from modelbudget.compare.comparison import TOLERANCE
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import count, signed_percent
from modelbudget.report.charts.grouped_values import least_and_most
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

KINDS = {"resident_bytes": "parameters", "resident_peak_bytes": "two training steps"}
MARGIN = 70
"""Width in pixels of the vertical axis."""


def _draw(tables: SweepTables) -> dict[str, theme.Layers]:
    """Return charts by name: bytes by number of parameters, and the difference in percent.

    There are none if the sweep has no measured process memory with a prediction.
    """
    comparison = tables.comparison
    sizes = (
        comparison.filter(pl.col("quantity") == "parameters")
        .group_by("point").agg(parameters=pl.col("measured").sum())
    )  # fmt: skip
    rows = (
        comparison.filter(pl.col("quantity").is_in(list(KINDS)), pl.col("predicted") > 0)
        .join(sizes, on="point").filter(pl.col("parameters") > 0)
        .with_columns(kind=pl.col("quantity").replace_strict(KINDS, return_dtype=pl.String))
        .select("label", "parameters", "kind", "predicted", "measured", "percent")
        .sort("kind", "parameters")
    )  # fmt: skip
    with_both = rows.drop_nulls("percent")
    if with_both.is_empty():
        return {}
    return {"resident": _bytes(rows), "resident-difference": _difference(with_both)}


CHART = Chart(_draw, lambda tables: not tables.solved)


def _bytes(rows: pl.DataFrame) -> theme.Layers:
    y = _y("predicted:Q", "bytes", alt.Scale(type="log", nice=False))
    ticks = theme.ticks(*least_and_most(rows, "predicted"))
    y = y.axis(_axis(labelExpr=theme.BYTES, **ticks))
    base = alt.Chart(rows).encode(x=_x(rows))
    predicted = base.mark_line(color=theme.SOFT, strokeWidth=1.5).encode(y=y, detail="kind:N")
    measured = base.transform_filter("isValid(datum.measured)").mark_point(
        color=theme.INK, size=60, opacity=1
    )
    last = rows.drop_nulls("measured").sort("measured").row(-1, named=True)
    return theme.framed(
        alt.layer(
            predicted, measured.encode(y="measured:Q", shape=_shape(rows), tooltip=_tooltip())
        ).properties(width=theme.panel_width(1, MARGIN), height=260),
        "Resident memory, measured (points) and predicted (lines)",
        f"Largest model, {count(last['parameters'])} parameters, {last['kind']}: "
        f"{count(last['measured'])} bytes measured, {count(last['predicted'])} predicted.",
        MARGIN,
    )


def _difference(rows: pl.DataFrame) -> theme.Layers:
    bound = 100 * TOLERANCE["resident_bytes"]
    band = alt.Chart(pl.DataFrame({"low": [-bound], "high": [bound]})).mark_rect(color=theme.LINE)
    points = alt.Chart(rows).mark_point(color=theme.INK, size=60, opacity=1)
    y = _y("percent:Q", "measured − predicted, % of predicted", alt.Scale(zero=True))
    judged = rows.filter(pl.col("kind").is_in([KINDS["resident_bytes"]]))
    judged = rows if judged.is_empty() else judged
    large = judged.filter(pl.col("parameters") >= 10**7)
    worst = (judged if large.is_empty() else large).sort(pl.col("percent").abs())
    worst = worst.row(-1, named=True)
    where = "Of all models, " if large.is_empty() else "From ten million parameters on, "
    return theme.framed(
        alt.layer(
            band.encode(y=alt.Y("low:Q"), y2="high:Q"),
            points.encode(x=_x(rows), y=y, shape=_shape(rows), tooltip=_tooltip()),
        ).properties(width=theme.panel_width(1, MARGIN), height=220),
        "Difference of measured and predicted resident memory",
        f"{where}the largest difference is {signed_percent(worst['percent'] / 100)} "
        f"({worst['kind']}, {count(worst['parameters'])} parameters). The band is ±{bound:g} %. "
        "Training also uses memory outside of tensors, which the formulas do not cover.",
        MARGIN,
    )


def _x(rows: pl.DataFrame) -> alt.X:
    ticks = theme.ticks(*least_and_most(rows, "parameters"))
    return alt.X(
        "parameters:Q",
        title="parameters",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(grid=False, labelExpr=theme.SHORT, **ticks),
    )


def _y(field: str, title: str, scale: alt.Scale) -> alt.Y:
    return alt.Y(field, title=title, scale=scale, axis=_axis())


def _axis(**more) -> alt.Axis:
    return alt.Axis(minExtent=42, maxExtent=42, **more)


def _shape(rows: pl.DataFrame) -> alt.Shape:
    return alt.Shape("kind:N", title=None, sort=rows["kind"].unique(maintain_order=True).to_list())


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("label:N", title="model"),
        alt.Tooltip("parameters:Q", format=","),
        alt.Tooltip("kind:N", title="kind"),
        alt.Tooltip("predicted:Q", format=","),
        alt.Tooltip("measured:Q", format=","),
        alt.Tooltip("percent:Q", format="+.3f", title="%"),
    ]
