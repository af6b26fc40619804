"""Many models side by side, the smallest first: each a sliver of shares."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.bars import extremes
from modelbudget.report.charts.budget import groups_in, spread, totals
from modelbudget.report.charts.format import UNITS, count, percent

MOST_MODELS = 350
MARGIN = 44
"""Pixels of the vertical axis."""


def strip(table: pl.DataFrame, quantity: str) -> alt.LayerChart:
    """The share of each group in each model, in the order of their sizes."""
    models = totals(table).sort("total", "point")
    kept = models.filter(pl.col("point").is_in(spread(models["point"].to_list(), MOST_MODELS)))
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
                axis=alt.Axis(format="%", minExtent=34, maxExtent=34),
            ),
            color=theme.colour(groups, columns=6),
            order="rank:Q",
        )
    )  # fmt: skip
    most = table.sort("value", maintain_order=True).unique("point", keep="last")
    leads = most.group_by("group").len().sort("len", "group", descending=True).rows()
    finding = (
        f"What holds most of a model: {', '.join(f'{group} in {count(n)}' for group, n in leads)}. "
        f"{extremes(table, models, quantity)}"
    )
    if kept.height < models.height:
        finding += f" Drawn: {kept.height} of {count(models.height)}, evenly chosen."
    chart = alt.layer(shares, _readings(rows, kept, groups, quantity)).properties(
        width=theme.panel_width(1, MARGIN), height=300
    )
    title = f"Where the {UNITS[quantity]} are in {count(models.height)} models, by size"
    return theme.framed(chart, title, finding, MARGIN, groups=groups)


def _place(models: pl.DataFrame, quantity: str) -> alt.X:
    """From the smallest to the largest, marked where each power of ten is first reached."""
    firsts = (
        models.with_columns(power=pl.col("total").map_elements(lambda n: len(str(n)) - 1, pl.Int64))
        .unique("power", keep="first").sort("power").select("place", "power").rows()
    )[1:]  # fmt: skip
    marks = {place: 10**power for place, power in firsts}
    text = "".join(f"datum.value == {place} ? {size} : " for place, size in marks.items())
    return alt.X(
        "place:O",
        title=f"models, from few {UNITS[quantity]} to many",
        scale=alt.Scale(paddingInner=0, paddingOuter=0),
        axis=alt.Axis(
            values=list(marks),
            labelExpr=theme.SHORT.replace("datum.value", f"({text} 0)"),
            labelAngle=0,
            domain=False,
        ),
    )


def _readings(
    rows: pl.DataFrame, models: pl.DataFrame, groups: list[str], quantity: str
) -> alt.Chart:
    """Unseen slivers that tell a pointer a model's name and all of its groups, exactly."""
    spoken = [
        f"{count(value)} ({percent(share)})"
        for value, share in rows.select("value", "share").rows()
    ]
    wide = (
        rows.with_columns(spoken=pl.Series(spoken, dtype=pl.String))
        .pivot("group", index="place", values="spoken")
        .join(models, on="place")
        .with_columns(pl.col(groups).fill_null("–"), pl.col("total").map_elements(count, pl.String))
        .drop("point")
    )
    tooltip = [
        alt.Tooltip("label:N", title="model"),
        alt.Tooltip("total:N", title=UNITS[quantity]),
        *(alt.Tooltip(f"{group}:N") for group in groups[::-1]),
    ]
    return (
        alt.Chart(wide)
        .mark_bar(color=theme.INK, opacity=0)
        .encode(x=_place(models, quantity), y=alt.datum(0), y2=alt.datum(1), tooltip=tooltip)
    )
