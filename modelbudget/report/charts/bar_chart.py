"""Stacked bars below the name and the total of each model: shares of its parts, or amounts."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, count, percent, times
from modelbudget.report.charts import chart_tables, theme
from modelbudget.report.charts.chart_tables import evenly_spaced, groups_in, named_ends, totals
from modelbudget.sweeps.fields_in_words import UNITS, amount, brief

DIGIT = 8
"""Width of a digit in pixels, for the total at the end of a line."""
SAMPLE = 24
"""Models that are drawn of many."""
ALWAYS = ("PaLM 540B", "GPT-2 124M", "Llama 3 8B")
"""Models that are always among them."""
ROW = 19
"""Height of a line in pixels: a model's name, or one of its bars."""
MARGIN = 66
"""Pixels of the names of phases."""
ONE = {"": ""}
"""The bar of a model that has only one."""
NAME = "name"
ABOVE = 100
"""Pixels above the bars for the texts of marks."""


def lines_of(models: pl.DataFrame, phases: Mapping[str, str] = ONE) -> tuple[alt.Y, int]:
    """Return the vertical channel `line`, and the height: a line of each name and each phase."""
    lines = [f"{point} {phase}" for point in models["point"] for phase in (NAME, *phases)]
    texts = " : ".join(f"split(datum.value, ' ')[1] == '{k}' ? '{v}'" for k, v in phases.items())
    named = theme.vertical(
        MARGIN - 4, labelExpr=f"{texts} : ''", domain=False, ticks=False, labelOverlap=False
    )
    scale = alt.Scale(domain=lines, paddingInner=0.12, paddingOuter=0)
    axis = None if phases == ONE else named
    return alt.Y("line:N", title=None, scale=scale, axis=axis), ROW * len(lines)


def line(phase: str | pl.Expr = "") -> pl.Expr:
    """Return the line of a phase of a point."""
    return pl.concat_str("point", pl.lit(phase) if isinstance(phase, str) else phase, separator=" ")


def names_and_totals(models: pl.DataFrame, y: alt.Y) -> list[alt.Chart]:
    """Return the `label` of each model at the left, as long as it has room, and its `total`."""
    base = alt.Chart(models.select("label", "total", line=line(NAME))).encode(y=y)
    limit = alt.ExprRef(f"width - {DIGIT * (max(map(len, models['total'])) + 1)}")
    style: dict[str, Any] = {"baseline": "middle", "yOffset": 3, "fontSize": 12}
    return [
        base.mark_text(align="left", limit=limit, **style).encode(
            x=alt.value(0), text=alt.Text("label:N")
        ),
        base.mark_text(align="right", color=theme.SOFT, **style).encode(
            x=alt.value("width"), text=alt.Text("total:N")
        ),
    ]


def stacked_bars(
    table: pl.DataFrame,
    quantity: str,
    title: str,
    finding: str,
    whole: str = "",
    phases: Mapping[str, str] = ONE,
    marks: Sequence[alt.Chart] = (),
) -> theme.Layers:
    """Draw a bar for each model, or for each of its phases, below its name and its total.

    Columns: point, label, group, rank, value, total, with `whole` the share of it, which is drawn
    instead of the value, and with `phases` the phase. `marks` are drawn above the bars.
    """
    groups = groups_in(table)
    models = table.unique("point", keep="first", maintain_order=True)
    y, height = lines_of(models, phases)
    margin = 0 if phases == ONE else MARGIN
    ticks = theme.tick_labels(quantity)
    labels: dict[str, Any] = {"format": "%"} if whole else {"labelExpr": ticks}
    x = alt.X(
        "share:Q" if whole else "value:Q",
        title=f"share of the {whole}" if whole else UNITS[quantity],
        scale=alt.Scale(domain=[0, 1]) if whole else alt.Undefined,
        axis=alt.Axis(**labels, tickCount=5, labelFlush=True, grid=False),
    )
    phase = {"phase": "phase"} if margin else {}
    share = {"share": "share"} if whole else {}
    columns = ("label", "group", "rank", "value", *share, *phase)
    texts = {"label": "model", "group": "part"} | phase
    bars = (
        alt.Chart(table.select(*columns, line=line(pl.col("phase") if margin else "")))
        .mark_bar(stroke=theme.PAPER, strokeWidth=0.5)
        .encode(
            x=x,
            y=y,
            color=theme.colour(groups, columns=5, offset=ABOVE if marks else 8),
            order=alt.Order("rank:Q"),
            tooltip=theme.tooltip(texts, {"value": UNITS[quantity]}, share),
        )
    )
    of_models = pl.Series([brief(total, quantity) for total in models["total"]])
    heads = names_and_totals(models.with_columns(total=of_models), y)
    chart = alt.layer(bars, *heads, *marks).properties(width=theme.WIDTH - margin, height=height)
    return theme.framed(chart, title, finding, margin, groups=groups)


def is_shared(table: pl.DataFrame) -> bool:
    """Return whether some point has more than one group, so that there are shares to draw."""
    return table.filter(pl.col("value") > 0)["point"].is_duplicated().any()


def bars_of_models(whole: pl.DataFrame, quantity: str) -> theme.Layers:
    """Draw the share of each group in each model; of more than MOST_BARS, of some by size.

    Of models with one group only, shares would say nothing: their amounts are drawn.
    """
    models = totals(whole)
    unit, drawn, table = capitalized(UNITS[quantity]), "", whole.filter(pl.col("value") > 0)
    if models.height > chart_tables.MOST_BARS:
        by_size = models.sort("total", "point").with_row_index("place")
        spaced = pl.col("place").is_in(evenly_spaced(range(models.height), SAMPLE))
        kept = by_size.filter(spaced | pl.col("label").is_in(list(ALWAYS))).drop("place")
        drawn = f" Drawn: {kept.height} of {count(models.height)} models, evenly spaced by size."
        table = kept.select("point").join(table, on="point", maintain_order="left_right")
    if is_shared(whole):
        finding = largest_part(whole, quantity) + drawn
        return stacked_bars(
            table, quantity, f"{unit} by component and model", finding, UNITS[quantity]
        )
    if quantity == "cache_bytes":  # one part of memory, with its colour
        table = table.with_columns(group=pl.lit("KV cache"))
    finding = most_and_least(models.rename({"total": "value"}), quantity) + drawn
    return stacked_bars(table, quantity, f"{unit} by model", finding)


def most_and_least(rows: pl.DataFrame, quantity: str) -> str:
    """Name the points with most and least of a quantity, whose amount is `value`."""
    least, *_, most = rows.sort("value", maintain_order=True).rows(named=True) * 2
    text = f"{most['label']}: {amount(most['value'], quantity)}"
    if least["value"] < most["value"]:
        ratio = f"{times(most['value'] / least['value'])} that" if least["value"] else "more than"
        text += f", {ratio} of {least['label']} ({brief(least['value'], quantity)})"
    return f"{text}."


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
    n_models, ((group, n), *other_groups) = largest.height, _counted(largest)
    rows = largest.filter(pl.col("group") == group)
    what = UNITS[quantity].removeprefix("bytes of ")
    if n_models == 1:
        only = rows.row(0, named=True)
        return (
            f"The largest part of the {what} of {only['label']} is {group}, "
            f"{percent(only['share'])}. In total: {brief(only['total'], quantity)}."
        )
    models = f"all {count(n)}" if not other_groups else f"{count(n)} of {count(n_models)}"
    texts = {percent(share) for share in rows["share"]}
    is_equal = n > 1 and len(texts) == 1
    shares = f"{texts.pop()} in each" if is_equal else named_ends(rows, "share", percent)
    finding = f"The largest part of the {what} is {group} in {models} models: {shares}."
    if other_groups:
        finding += (
            f" In the others: {', '.join(f'{name} ({count(n)})' for name, n in other_groups)}."
        )
    ends = named_ends(totals(table), "total", lambda total: brief(total, quantity))
    return f"{finding} Totals are {ends}."


def _counted(rows: pl.DataFrame) -> list[tuple[str, int]]:
    """Count the rows of each group, the most frequent group first."""
    return rows.group_by("group").len().sort("len", "group", descending=[True, False]).rows()
