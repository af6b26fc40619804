"""Resident memory of real processes: the difference of measured and predicted bytes."""

import altair as alt
import polars as pl

from modelbudget.compare.comparison import TOLERANCE
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import count, signed_percent
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

KINDS = {"resident_bytes": "parameters", "resident_peak_bytes": "two training steps"}
MARGIN = 70
"""Width in pixels of the vertical axis."""


def _draw(tables: SweepTables) -> dict[str, theme.Layers]:
    """Draw the difference, if the sweep has measured process memory with a prediction."""
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
        .drop_nulls("percent").sort("kind", "parameters")
    )  # fmt: skip
    return {} if rows.is_empty() else {"resident-difference": _difference(rows)}


CHART = Chart(_draw, lambda tables: not tables.solved)


def _difference(rows: pl.DataFrame) -> theme.Layers:
    bound = 100 * TOLERANCE["resident_bytes"]
    band = alt.Chart(pl.DataFrame({"low": [-bound], "high": [bound]})).mark_rect(color=theme.LINE)
    points = alt.Chart(rows).mark_point(color=theme.INK, size=60, opacity=1)
    y = alt.Y(
        "percent:Q",
        title="measured − predicted, % of predicted",
        scale=alt.Scale(zero=True),
        axis=theme.vertical(),
    )
    numbers = {name: name for name in ("parameters", "predicted", "measured")}
    judged = rows.filter(pl.col("kind").is_in([KINDS["resident_bytes"]]))
    judged = rows if judged.is_empty() else judged
    large = judged.filter(pl.col("parameters") >= 10**7)
    worst = (judged if large.is_empty() else large).sort(pl.col("percent").abs())
    worst = worst.row(-1, named=True)
    where = "Of all models, " if large.is_empty() else "From ten million parameters on, "
    return theme.framed(
        alt.layer(
            band.encode(y=alt.Y("low:Q"), y2="high:Q"),
            points.encode(
                x=theme.number_of_parameters(rows, "parameters", "parameters"),
                y=y,
                shape=alt.Shape("kind:N", title=None, sort=list(KINDS.values())),
                tooltip=[
                    *theme.tooltip({"label": "model", "kind": "kind"}, numbers),
                    alt.Tooltip("percent:Q", format="+.3f", title="%"),
                ],
            ),
        ).properties(width=theme.panel_width(1, MARGIN), height=220),
        "Difference of measured and predicted resident memory",
        f"{where}the largest difference is {signed_percent(worst['percent'] / 100)} "
        f"({worst['kind']}, {count(worst['parameters'])} parameters). The band is ±{bound:g} %. "
        "Training also uses memory outside of tensors, which the formulas do not cover.",
        MARGIN,
    )
