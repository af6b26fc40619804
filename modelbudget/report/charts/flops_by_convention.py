"""FLOPs per training token by counting convention, along a ladder of models."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.area_chart import SERIES, amounts_along
from modelbudget.report.charts.format import percent


def departures(rows: pl.DataFrame) -> alt.ConcatChart:
    """Draw estimates relative to the FLOPs that are executed, against parameters.

    Columns: label, parameters, series (the convention), share (of what is executed).
    """
    whole = alt.Chart(pl.DataFrame({"value": [1.0]})).mark_rule(color=theme.SOFT)
    return amounts_along(
        rows.rename({"share": "value"}),
        "share of the FLOPs that are executed",
        "parameters",
        SERIES,
        finding=_finding(rows),
        title="FLOPs per training token, by convention",
        marks=[whole.encode(y="value:Q")],
        reaches=[1.0],
    )


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
