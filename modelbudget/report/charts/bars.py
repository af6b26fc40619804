"""One bar for each model, with its name and total above: shares of components, or one amount."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.budget import groups_in, totals
from modelbudget.report.charts.format import (
    UNITS,
    amount,
    brief,
    capitalized,
    percent,
)

DIGIT = 8
"""Width of a digit in pixels, for the total at the end of a line."""
ROW = 46
"""Height of a row in pixels: a bar, and a line of text above it."""


def room_of(texts: pl.Series) -> int:
    """Return the width in pixels of the longest of the texts, with a digit's gap before it."""
    return DIGIT * (max(map(len, texts)) + 1)


def bars(table: pl.DataFrame, quantity: str, title: str = "") -> theme.Layers:
    """Draw the share of each group in each model, in the order of the points."""
    models = totals(table)
    groups = groups_in(table)
    y = _rows(models)
    shares = (
        alt.Chart(table.select("point", "label", "group", "rank", "value", "share", "total"))
        .mark_bar(size=18, yOffset=6, stroke=theme.PAPER, strokeWidth=0.5)
        .encode(
            x=alt.X(
                "share:Q", title=f"share of the {UNITS[quantity]}", scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=5, labelFlush=True, grid=False),
            ),
            y=y,
            color=theme.colour(groups),
            order="rank:Q",
            tooltip=[
                alt.Tooltip("label:N", title="model"),
                alt.Tooltip("group:N", title="component"),
                alt.Tooltip("value:Q", format=",", title=UNITS[quantity]),
                alt.Tooltip("share:Q", format=".3%"),
                alt.Tooltip("total:Q", format=",", title="total"),
            ],
        )
    )  # fmt: skip
    chart = alt.layer(shares, *_names(models, quantity, y)).properties(
        width=theme.WIDTH, height=ROW * models.height
    )
    finding = extremes(table, models, quantity)
    title = title or f"{capitalized(UNITS[quantity])} by component and model"
    return theme.framed(chart, title, finding, 0, groups=groups)


def amounts(table: pl.DataFrame, quantity: str) -> theme.Layers:
    """Draw the amount of each model that has one group only, so that shares would say nothing."""
    models = totals(table)
    rows = table.filter(pl.col("value") > 0)
    groups = groups_in(rows)
    y = _rows(models)
    marks = (
        alt.Chart(rows.select("point", "label", "group", "value"))
        .mark_bar(size=18, yOffset=6)
        .encode(
            x=alt.X("value:Q", title=UNITS[quantity], axis=alt.Axis(
                labelExpr=theme.tick_labels(quantity), tickCount=5, labelFlush=True, grid=False)),
            y=y,
            color=theme.colour(groups),
            tooltip=[
                alt.Tooltip("label:N", title="model"),
                alt.Tooltip("value:Q", format=",", title=UNITS[quantity]),
            ],
        )
    )  # fmt: skip
    chart = alt.layer(marks, *_names(models, quantity, y)).properties(
        width=theme.WIDTH, height=ROW * models.height
    )
    least, *_, most = models.sort("total", maintain_order=True).rows(named=True) * 2
    finding = f"{most['label']}: {amount(most['total'], quantity)}"
    if least["total"] < most["total"]:
        times = f"{most['total'] / least['total']:,.3g}"
        finding += f", {times} × that of {least['label']} ({amount(least['total'], quantity)})"
    title = f"{capitalized(UNITS[quantity])} by model"
    return theme.framed(chart, title, f"{finding}.", 0, groups=groups)


def _rows(models: pl.DataFrame) -> alt.Y:
    """Return the vertical channel: one row for each model, in their order."""
    scale = alt.Scale(paddingInner=0.5, paddingOuter=0.5)
    return alt.Y("point:N", sort=models["point"].to_list(), axis=None, scale=scale)


def _names(models: pl.DataFrame, quantity: str, y: alt.Y) -> list[alt.Chart]:
    """Return the names above the bars, and their totals at the right."""
    texts = pl.Series([brief(total, quantity) for total in models["total"]])
    rows = models.select("point", "label").with_columns(total=texts)
    base = alt.Chart(rows).encode(y=y)
    style = {"baseline": "bottom", "yOffset": -7, "fontSize": 12}
    limit = alt.ExprRef(f"width - {room_of(texts)}")
    return [
        base.mark_text(align="left", limit=limit, **style).encode(x=alt.value(0), text="label:N"),
        base.mark_text(align="right", color=theme.SOFT, **style).encode(
            x=alt.value("width"), text="total:N"
        ),
    ]


def extremes(table: pl.DataFrame, models: pl.DataFrame, quantity: str) -> str:
    """Describe the largest group in the smallest and in the largest model."""
    sizes = models.sort("total", maintain_order=True)
    texts = []
    for point in dict.fromkeys((sizes["point"][0], sizes["point"][-1])):
        most = table.filter(pl.col("point") == point).sort("value").row(-1, named=True)
        texts.append(
            f"{most['label']} ({amount(most['total'], quantity)}): "
            f"{percent(most['share'])} {most['group']}"
        )
    return "; ".join(texts) + "."
