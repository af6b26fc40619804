"""Many models side by side, sorted by size: the shares of each model as a narrow bar."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import largest_part
from modelbudget.report.charts.format import UNITS, capitalized, count, percent
from modelbudget.report.charts.grouped_values import evenly_spaced, groups_in, totals
from modelbudget.report.charts.labels import ALWAYS

MOST_MODELS = 350
MARGIN = 44
"""Width in pixels of the vertical axis."""


def strip(table: pl.DataFrame, quantity: str) -> theme.Layers:
    """Draw the share of each group in each model, in ascending order of the total."""
    models = totals(table).sort("total", "point")
    kept = models.filter(
        pl.col("point").is_in(evenly_spaced(models["point"].to_list(), MOST_MODELS))
    )
    kept = kept.select("point", "label", "total", place=pl.int_range(pl.len()))
    rows = table.drop("label", "total").join(kept, on="point").filter(pl.col("value") > 0)
    groups = groups_in(table)
    shares = (
        alt.Chart(rows.select("place", "group", "rank", pl.col("share").round(5)))
        .mark_bar()
        .encode(
            x=_place(kept, quantity),
            y=alt.Y(
                "share:Q", title=None, scale=alt.Scale(domain=[0, 1]),
                axis=theme.vertical(34, format="%"),
            ),
            color=theme.colour(groups, columns=6),
            order="rank:Q",
        )
    )  # fmt: skip
    finding = largest_part(table, quantity)
    if kept.height < models.height:
        finding += f" Drawn: {kept.height} of {count(models.height)} models, evenly spaced."
    chart = (
        alt.layer(shares, _tooltip_bars(rows, kept, groups))
        .properties(width=theme.panel_width(1, MARGIN), height=300)
        .resolve_axis(x="independent")
    )
    title = f"{capitalized(UNITS[quantity])} by component in {count(models.height)} models"
    return theme.framed(chart, title, finding, MARGIN, groups=groups)


def _place(models: pl.DataFrame, quantity: str) -> alt.X:
    """Return the horizontal channel: models by size, with a mark at each new power of ten."""
    firsts = (
        models.with_columns(power=pl.col("total").map_elements(lambda n: len(str(n)) - 1, pl.Int64))
        .unique("power", keep="first").sort("power").select("place", "power").rows()
    )[1:]  # fmt: skip
    marks = {place: 10**power for place, power in firsts}
    text = "".join(f"datum.value == {place} ? {size} : " for place, size in marks.items())
    return alt.X(
        "place:O",
        title=f"models, sorted by {UNITS[quantity]}",
        scale=alt.Scale(paddingInner=0, paddingOuter=0),
        axis=alt.Axis(
            values=list(marks),
            labelExpr=theme.tick_labels(quantity).replace("datum.value", f"({text} 0)"),
            labelAngle=0,
            domain=False,
        ),
    )


def _named(models: pl.DataFrame) -> alt.X:
    """Return the same channel with the names of well-known models above it."""
    known = models.filter(pl.col("label").is_in(list(ALWAYS))).select("place", "label").rows()
    text = "".join(f"datum.value == {place} ? '{label}' : " for place, label in known)
    axis = alt.Axis(
        orient="top", values=[place for place, _ in known], labelExpr=f"{text} ''", labelAngle=0,
        domain=False,
    )  # fmt: skip
    return alt.X("place:O", title=None, scale=alt.Scale(paddingInner=0, paddingOuter=0), axis=axis)


def _tooltip_bars(rows: pl.DataFrame, models: pl.DataFrame, groups: list[str]) -> alt.Chart:
    """Draw invisible bars whose tooltip has a model's name and all of its groups exactly."""
    texts = [
        f"{count(value)} ({percent(share)})"
        for value, share in rows.select("value", "share").rows()
    ]
    wide = (
        rows.with_columns(text=pl.Series(texts, dtype=pl.String))
        .pivot("group", index="place", values="text")
        .join(models, on="place")
        .with_columns(pl.col(groups).fill_null("–"), pl.col("total").map_elements(count, pl.String))
        .drop("point")
    )
    tooltip = theme.tooltip({"label": "model", "total": "total"} | {g: g for g in groups[::-1]})
    return (
        alt.Chart(wide)
        .mark_bar(color=theme.INK, opacity=0)
        .encode(x=_named(models), y=alt.datum(0), y2=alt.datum(1), tooltip=tooltip)
    )
