"""One bar for each model, with its name and total above: shares of components, or one amount."""

from collections.abc import Callable
from typing import Any

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.format import (
    UNITS,
    amount,
    brief,
    capitalized,
    count,
    percent,
    times,
)
from modelbudget.report.charts.grouped_values import evenly_spaced, groups_in, totals
from modelbudget.report.charts.labels import ALWAYS

DIGIT = 8
"""Width of a digit in pixels, for the total at the end of a line."""
SAMPLE = 24
"""Models that are drawn of many, and those that every chart of models names."""
ROW = 46
"""Height of a row in pixels: a bar, and a line of text above it."""


def shares_of(whole: str) -> alt.X:
    """Return the horizontal channel of shares, from nothing to the whole."""
    axis = alt.Axis(format="%", tickCount=5, labelFlush=True, grid=False)
    scale = alt.Scale(domain=[0, 1])
    return alt.X("share:Q", title=f"share of the {whole}", scale=scale, axis=axis)


def names_and_totals(rows: pl.DataFrame, y: alt.Y, **style) -> list[alt.Chart]:
    """Return the `label` of each row at the left, as long as it has room, and its `total`."""
    base = alt.Chart(rows).encode(y=y)
    limit = alt.ExprRef(f"width - {DIGIT * (max(map(len, rows['total'])) + 1)}")
    return [
        base.mark_text(align="left", limit=limit, **style).encode(x=alt.value(0), text="label:N"),
        base.mark_text(align="right", color=theme.SOFT, **style).encode(
            x=alt.value("width"), text="total:N"
        ),
    ]


def bars(whole: pl.DataFrame, quantity: str, most: int) -> theme.Layers:
    """Draw the share of each group in each model; of more than `most`, of some by size."""
    table, models, drawn = _some(whole, most)
    groups = groups_in(table)
    y = row_of_each(models)
    shares = (
        alt.Chart(table.select("point", "label", "group", "rank", "value", "share", "total"))
        .mark_bar(size=18, yOffset=6, stroke=theme.PAPER, strokeWidth=0.5)
        .encode(
            x=shares_of(UNITS[quantity]),
            y=y,
            color=theme.colour(groups),
            order="rank:Q",
            tooltip=theme.tooltip(
                {"label": "model", "group": "component"},
                {"value": UNITS[quantity], "total": "total"}, {"share": "share"},
            ),
        )
    )  # fmt: skip
    chart = alt.layer(shares, *_names(models, quantity, y)).properties(
        width=theme.WIDTH, height=ROW * models.height
    )
    finding = largest_part(whole, quantity) + drawn
    title = f"{capitalized(UNITS[quantity])} by component and model"
    return theme.framed(chart, title, finding, 0, groups=groups)


def amounts(whole: pl.DataFrame, quantity: str, most: int) -> theme.Layers:
    """Draw the amount of each model that has one group only, so that shares would say nothing."""
    table, models, drawn = _some(whole, most)
    rows = table.filter(pl.col("value") > 0)
    if quantity == "cache_bytes":  # one part of memory, with its colour
        rows = rows.with_columns(group=pl.lit("KV cache"))
    groups = groups_in(rows)
    y = row_of_each(models)
    marks = (
        alt.Chart(rows.select("point", "label", "group", "value"))
        .mark_bar(size=18, yOffset=6)
        .encode(
            x=alt.X("value:Q", title=UNITS[quantity], axis=alt.Axis(
                labelExpr=theme.tick_labels(quantity), tickCount=5, labelFlush=True, grid=False)),
            y=y,
            color=theme.colour(groups),
            tooltip=theme.tooltip({"label": "model"}, {"value": UNITS[quantity]}),
        )
    )  # fmt: skip
    chart = alt.layer(marks, *_names(models, quantity, y)).properties(
        width=theme.WIDTH, height=ROW * models.height
    )
    title = f"{capitalized(UNITS[quantity])} by model"
    finding = most_and_least(totals(whole).rename({"total": "value"}), quantity) + drawn
    return theme.framed(chart, title, finding, 0, groups=groups)


def _some(table: pl.DataFrame, most: int) -> tuple[pl.DataFrame, pl.DataFrame, str]:
    """Return the rows and the models that are drawn, in their order or by size, and which."""
    models = totals(table)
    if models.height <= most:
        return table, models, ""
    by_size = models.sort("total", "point").with_row_index("place")
    spaced = pl.col("place").is_in(evenly_spaced(range(models.height), SAMPLE))
    kept = by_size.filter(spaced | pl.col("label").is_in(list(ALWAYS))).drop("place")
    drawn = f" Drawn: {kept.height} of {count(models.height)} models, evenly spaced by size."
    return table.filter(pl.col("point").is_in(kept["point"].implode())), kept, drawn


def most_and_least(rows: pl.DataFrame, quantity: str) -> str:
    """Name the points with most and least of a quantity, whose amount is `value`."""
    least, *_, most = rows.sort("value", maintain_order=True).rows(named=True) * 2
    text = f"{most['label']}: {amount(most['value'], quantity)}"
    if least["value"] < most["value"]:
        ratio = f"{times(most['value'] / least['value'])} that" if least["value"] else "more than"
        text += f", {ratio} of {least['label']} ({brief(least['value'], quantity)})"
    return f"{text}."


def row_of_each(models: pl.DataFrame) -> alt.Y:
    """Return the vertical channel: one row for each model, in their order."""
    scale = alt.Scale(type="band", paddingInner=0.5, paddingOuter=0.5)
    return alt.Y("point:N", sort=models["point"].to_list(), axis=None, scale=scale)


def _names(models: pl.DataFrame, quantity: str, y: alt.Y) -> list[alt.Chart]:
    """Return the names above the bars, and their totals at the right."""
    texts = pl.Series([brief(total, quantity) for total in models["total"]])
    rows = models.select("point", "label").with_columns(total=texts)
    return names_and_totals(rows, y, baseline="bottom", yOffset=-7, fontSize=12)


def largest_part(table: pl.DataFrame, quantity: str) -> str:
    """Name the group that is the largest part of most models, with its shares in these models.

    Of equal groups of a model counts the one that is the largest part of more models.
    Then the other groups that are the largest part of a model, and the ends of the totals.
    """
    ties = table.filter(pl.col("value") == pl.col("value").max().over("point"))
    frequent = [name for name, _ in _counted(ties)]
    largest = ties.sort(pl.col("group").cast(pl.Enum(frequent)), maintain_order=True).unique(
        "point", keep="first", maintain_order=True
    )
    n_models, (group, n) = table["point"].n_unique(), _counted(largest)[0]
    rows = largest.filter(pl.col("group") == group).sort("share", maintain_order=True)
    other_groups = _counted(largest.join(rows, on="point", how="anti"))
    ends = tuple(_named(rows, i, "share", percent) for i in (0, -1))
    what = UNITS[quantity].removeprefix("bytes of ")
    if n_models == 1:
        (only, _) = ends
        return (
            f"The largest part of the {what} of {only['label']} is {group}, "
            f"{percent(only['share'])}. In total: {brief(only['total'], quantity)}."
        )
    models = f"all {count(n)}" if not other_groups else f"{count(n)} of {count(n_models)}"
    texts = [percent(end["share"]) for end in ends]
    shares = f"{texts[0]} in each"
    if n == 1 or texts[0] != texts[1]:
        named = [f"{text} ({model['label']})" for text, model in zip(texts, ends, strict=True)]
        shares = " to ".join(dict.fromkeys(named))
    finding = f"The largest part of the {what} is {group} in {models} models: {shares}."
    if other_groups:
        finding += (
            f" In the others: {', '.join(f'{name} ({count(n)})' for name, n in other_groups)}."
        )
    by_size = totals(table).sort("total", maintain_order=True)
    smallest, biggest = (
        _named(by_size, i, "total", lambda total: brief(total, quantity)) for i in (0, -1)
    )
    return (
        f"{finding} Totals are {brief(smallest['total'], quantity)} ({smallest['label']}) to "
        f"{brief(biggest['total'], quantity)} ({biggest['label']})."
    )


def _named(rows: pl.DataFrame, i: int, column: str, text: Callable[[Any], str]) -> dict:
    """Return row `i`, or of those that print the same value the one with the shortest label."""
    printed = text(rows[column][i])
    alike = [row for row in rows.iter_rows(named=True) if text(row[column]) == printed]
    return min(alike, key=lambda row: len(row["label"]))


def _counted(rows: pl.DataFrame) -> list[tuple[str, int]]:
    """Count the rows of each group, the most frequent group first."""
    return rows.group_by("group").len().sort("len", "group", descending=[True, False]).rows()
