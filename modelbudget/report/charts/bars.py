"""One bar for each model: the shares of its components, with its name and total above."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.budget import groups_in, totals
from modelbudget.report.charts.format import UNITS, amount, capitalized, count, percent

DIGIT = 8
"""Width of a digit in pixels, for the total at the end of a line."""
ROW = 46
"""Height of a row in pixels: a bar, and a line of text above it."""


def room_of(texts: pl.Series) -> int:
    """Return the width in pixels of the longest of the texts, with a digit's gap before it."""
    return DIGIT * (max(map(len, texts)) + 1)


def bars(table: pl.DataFrame, quantity: str) -> theme.Layers:
    """Draw the share of each group in each model, in the order of the points."""
    models = totals(table)
    points = models["point"].to_list()
    names = models.select("point", "label", total=pl.col("total").map_elements(count, pl.String))
    room = room_of(names["total"])
    groups = groups_in(table)
    y = alt.Y(
        "point:N", sort=points, axis=None, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5)
    )
    shares = (
        alt.Chart(table.select("point", "label", "group", "rank", "value", "share"))
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
            ],
        )
    )  # fmt: skip
    text = alt.Chart(names).mark_text(baseline="bottom", yOffset=-7, fontSize=12).encode(y=y)
    chart = alt.layer(
        shares,
        text.encode(x=alt.value(0), text="label:N").mark_text(
            align="left", baseline="bottom", yOffset=-7, limit=alt.ExprRef(f"width - {room}")
        ),
        text.encode(x=alt.value("width"), text="total:N").mark_text(
            align="right", baseline="bottom", yOffset=-7, color=theme.SOFT
        ),
    ).properties(width=theme.WIDTH, height=ROW * len(points))
    finding = extremes(table, models, quantity)
    title = f"{capitalized(UNITS[quantity])} by component and model"
    return theme.framed(chart, title, finding, 0, groups=groups)


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
