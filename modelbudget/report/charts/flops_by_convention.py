"""FLOPs per training token by counting convention, along a ladder of models."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.format import percent

MARGIN = 56


def departures(rows: pl.DataFrame) -> theme.Layers:
    """Draw estimates relative to the FLOPs that are executed, against parameters.

    Columns: label, parameters, series (the convention), share (of what is executed).
    """
    base = alt.Chart(rows).encode(
        x=theme.number_of_parameters(rows, "parameters", "parameters, all"),
        y=alt.Y("share:Q", title="of the FLOPs that are executed", axis=theme.vertical(format="%")),
        tooltip=theme.tooltip(
            {"label": "model", "series": "convention"}, shares={"share": "of executed"}
        ),
    )
    series = rows["series"].unique(maintain_order=True).to_list()
    lines = base.mark_line(color=theme.INK, strokeWidth=1.5).encode(strokeDash=theme.dashes(series))
    dots = base.mark_point(color=theme.INK, filled=True, size=18, opacity=1)
    whole = (
        alt.Chart(pl.DataFrame({"share": [1.0]})).mark_rule(color=theme.SOFT).encode(y="share:Q")
    )
    chart = alt.layer(whole, lines, dots).properties(width=theme.WIDTH - MARGIN, height=300)
    return theme.framed(chart, "FLOPs per training token, by convention", _finding(rows), MARGIN)


def _finding(rows: pl.DataFrame) -> str:
    """Describe the spread of the estimates for the smallest and the largest model."""
    sizes = rows["parameters"].to_list()
    small, large = (
        _spread(rows.filter(pl.col("parameters") == end)) for end in (min(sizes), max(sizes))
    )
    return (
        f"Estimates of the FLOPs per token are {small}, and {large}, of what is executed. 100 % is "
        "every matrix product of a training step, as our formulas predict and traces of the "
        "modules confirm."
    )


def _spread(model: pl.DataFrame) -> str:
    shares = model["share"].to_list()
    return f"{percent(min(shares))} to {percent(max(shares))} for {model['label'][0]}"
