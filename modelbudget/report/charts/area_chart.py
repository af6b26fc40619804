"""A quantity along axes of a sweep: stacked shares of its components, and amounts as lines."""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, count, percent, times
from modelbudget.components.groups import VOCABULARY
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import most_and_least
from modelbudget.report.charts.chart_tables import (
    by_value,
    distinct,
    groups_in,
    least_and_most,
    some_values,
    totals,
    values,
)  # fmt: skip
from modelbudget.sweeps.fields_in_words import UNITS, amount, brief, field_title, value_of

MOST_VALUES = 40
MARGIN, MARGIN_WITH_TITLE = 52, 70
"""Width in pixels of a vertical axis, without and with a title."""
HEIGHT_OF_SHARES, HEIGHT_OF_LINES = 260, 220
FEW = 8
"""Up to this number of values an axis of sizes has a mark at each."""
SERIES = "series"
"""A column of lines that have names of their own."""
MOST_PANELS, MOST_LINES, MOST_POINTS = 12, 12, 2_000
LOGARITHMIC_FROM = 16
"""Ratio of the largest to the smallest amount from which on its axis is logarithmic."""


def shares_along(
    table: pl.DataFrame, axis: str, panels: dict[str, pl.DataFrame], quantity: str
) -> alt.ConcatChart:
    """Draw the share of each group along `axis`, with one panel for each named table.

    Equal tables share a panel.
    """
    panels = distinct(panels, axis, "group", "value")
    groups = groups_in(table)
    drawn = [
        (title, stack(some_values(rows, axis, MOST_VALUES), axis, groups, len(panels)))
        for title, rows in panels.items()
    ]
    finding = _where_the_vocabulary_dominates(panels, axis, quantity)
    return theme.panels(
        drawn, HEIGHT_OF_SHARES, f"{capitalized(UNITS[quantity])} by component along {axis}",
        finding + _largest_changes(panels, axis), MARGIN, groups,
    )  # fmt: skip


def stack(rows: pl.DataFrame, axis: str, groups: list[str], panels: int) -> alt.Chart:
    """Draw the shares of groups at each value of an axis, in one of some panels.

    Columns: the axis, group, rank, share, and value and total if they are known.
    """
    y_axis = theme.vertical(format="%")
    exact = {name: name for name in ("value", "total") if name in rows.columns}
    return (
        alt.Chart(rows.select(axis, "group", "rank", "share", *exact))
        .mark_bar(stroke=theme.PAPER, strokeWidth=0.5)
        .encode(
            x=in_order(axis, rows, _title(axis, panels)),
            y=alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=y_axis),
            color=theme.colour(groups),
            order=alt.Order("rank:Q"),
            tooltip=theme.tooltip({"group": "component", axis: axis}, exact, {"share": "share"}),
        )
    )


def _title(field: str, panels: int) -> str:
    """Return the title of a horizontal axis: the name alone where panels are narrower than more."""
    title = field_title(field)
    is_narrow = panels >= theme.COLUMNS or len(title) * theme.CHARACTER * panels > theme.WIDTH
    return field if is_narrow else title


def in_order(axis: str, rows: pl.DataFrame, title: str) -> alt.X:
    """Return the horizontal channel of values that stand side by side, sizes in their order."""
    label = f"isNumber(datum.value) ? ({theme.EXACT}) : datum.label"
    marks = alt.Axis(labelExpr=label, labelAngle=0, labelSeparation=2, ticks=False, grid=False)
    scale = alt.Scale(paddingInner=0.04, paddingOuter=0.02)
    return alt.X(f"{axis}:O", title=title, sort=values(rows, axis), axis=marks, scale=scale)


def over_axes(
    rows: pl.DataFrame, quantity: str, fields: list[str], finding: str = ""
) -> alt.ConcatChart:
    """Draw each point of a grid with these fields, so that every axis is in the chart.

    The size with most values is the horizontal axis; the next fields have a line for each value,
    and panels. Lines of all other fields stand in one panel.
    """
    by_number = sorted(fields, key=lambda field: len(values(rows, field)))
    sizes = [field for field in by_number if rows[field].dtype.is_integer()]
    x = (sizes or by_number)[-1]
    others = [field for field in by_number if field != x]
    facet, colour, *apart = others if len(others) > 1 else (None, *others, None)[:2]
    return amounts_along(rows, quantity, x, colour, facet, tuple(filter(None, apart)), finding)


def amounts_along(
    rows: pl.DataFrame,
    quantity: str,
    x: str,
    colour: str | None = None,
    facet: str | None = None,
    apart: tuple[str, ...] = (),
    finding: str = "",
    title: str = "",
    marks: Sequence[alt.Chart] = (),
    reaches: Sequence[float] = (),
) -> alt.ConcatChart:
    """Draw the amounts `value` of points along a field, with a line for each value of another one.

    Fractions of the field `x` are shares.
    `quantity` is one of UNITS, or names shares. Lines of other fields `apart` are not joined.
    `marks` are drawn below, and the vertical axis `reaches` these values.
    """
    kept = rows
    for field, most in ((facet, MOST_PANELS), (colour, MOST_LINES)):
        if field is not None:
            kept = some_values(kept, field, most)
    room = max(2, MOST_POINTS * len(values(kept, x)) // max(1, kept.height))
    kept = some_values(kept, x, room)
    line = pl.concat_str([pl.col(field).cast(pl.String) for field in apart] or [pl.lit("")])
    kept = kept.with_columns(line=line)
    is_size = kept[x].dtype.is_numeric()
    encoded: dict[str, Any] = {"y": _amount(kept, quantity, reaches)}
    names, dashes = [name for name in ("label",) if name in kept.columns], alt.Undefined
    if colour is not None:
        options = [_text(colour, one) for one in values(kept, colour)]
        name = None if colour == SERIES else colour
        legend = alt.Legend(title=name, columns=2, labelLimit=300, symbolSize=400)
        if is_size and not kept[colour].dtype.is_integer():
            dashes = alt.StrokeDash("shade:N", sort=options, legend=legend)
        else:
            scale = alt.Scale(domain=options, range=[0.25, 1])
            legend = alt.Legend(title=name, columns=4, symbolFillColor=theme.INK)
            encoded["opacity"] = alt.Opacity("shade:O", scale=scale, legend=legend)
        shade = pl.col(colour).map_elements(lambda one: _text(colour, one), pl.String)
        kept = kept.with_columns(shade=shade)
        names.append("shade")
    panels = by_value(kept, facet, MOST_PANELS)
    encoded["x"] = (size if is_size else in_order)(x, kept, _title(x, len(panels)))
    drawn = [
        (name, alt.layer(*marks, *_lines(table, x, quantity, encoded, names, dashes)))
        for name, table in panels.items()
    ]
    named = ", ".join(filter(None, (x, colour, facet)))
    return theme.panels(
        drawn, HEIGHT_OF_LINES, title or f"{capitalized(_unit(quantity))} by {named}",
        finding or most_and_least(rows, quantity), MARGIN_WITH_TITLE,
    )  # fmt: skip


def _unit(quantity: str) -> str:
    return UNITS.get(quantity, quantity)


def _lines(
    table: pl.DataFrame, x: str, quantity: str, encoded: dict, names: list[str], dashes: Any
) -> list[alt.Chart]:
    base = alt.Chart(table.select(x, "value", "line", *names)).encode(**encoded)
    texts = {name: {"label": "model", "shade": "line"}[name] for name in names}
    numbers, shares = {}, {}
    (shares if table[x].dtype.is_float() else texts)[x] = x
    (numbers if quantity in UNITS else shares)["value"] = _unit(quantity)
    tooltip = theme.tooltip(texts, numbers, shares)
    points = base.mark_point(color=theme.INK, filled=True, size=24).encode(tooltip=tooltip)
    if not table[x].dtype.is_numeric():
        return [points]
    # The points have no dashes: they would hide those of the legend.
    lines = base.mark_line(color=theme.INK, strokeWidth=1.5)
    return [lines.encode(detail=alt.Detail("line:N"), strokeDash=dashes), points]


def _amount(rows: pl.DataFrame, quantity: str, reaches: Sequence[float]) -> alt.Y:
    """Return the vertical channel; panels of one chart have one scale, so that they compare."""
    low, high = least_and_most(rows, "value")
    low, high = min(low, *reaches, low), max(high, *reaches, high)
    is_amount = quantity in UNITS
    is_logarithmic = low > 0 and high / low >= LOGARITHMIC_FROM and bool(is_amount or reaches)
    ticks: dict[str, Any] = {"tickCount": 5}
    if is_logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = theme.ticks(low, high) if is_amount else {"values": [10.0**n for n in powers]}
    ticks |= {"labelExpr": theme.tick_labels(quantity)} if is_amount else {"format": "~%"}
    kind, least = ("log", low) if is_logarithmic else ("linear", 0)
    scale = alt.Scale(type=kind, domain=[least, high or 1], nice=is_amount)
    return alt.Y("value:Q", title=_unit(quantity), scale=scale, axis=theme.vertical(**ticks))


def _text(field: str, option) -> str:
    if isinstance(option, bool):
        return value_of(field, option)
    return count(option) if isinstance(option, int) else str(option)


def size(axis: str, rows: pl.DataFrame, title: str) -> alt.X:
    """Return the horizontal channel of a size: logarithmic above a factor of 20, without a zero.

    Fractions are shares.
    """
    ends = values(rows, axis)
    logarithmic = ends[0] >= 1 and ends[-1] > 20 * ends[0]
    marks: dict[str, Any] = theme.ticks(ends[0], ends[-1]) if logarithmic else {"tickCount": 5}
    is_share = rows[axis].dtype.is_float()
    if len(ends) <= FEW and not is_share:
        marks = {"values": ends}
    marks |= {"format": "%"} if is_share else {"labelExpr": theme.EXACT}
    kind: dict[str, Any] = {"type": "log"} if logarithmic else {"zero": False}
    axis_of_sizes = alt.Axis(grid=False, **marks)
    return alt.X(f"{axis}:Q", title=title, scale=alt.Scale(nice=False, **kind), axis=axis_of_sizes)


def _where_the_vocabulary_dominates(
    panels: dict[str, pl.DataFrame], axis: str, quantity: str
) -> str:
    """Say from which size of the vocabulary on embedding and head hold more than half.

    Of several panels it is the first. Empty along another axis, or if no model or each one does.
    """
    if axis != "n_vocab":
        return ""
    title, rows = next(iter(panels.items()))
    ends = [group for group in VOCABULARY if group in rows["group"]]
    shares = rows.filter(pl.col("group").is_in(ends)).group_by(axis).agg(pl.col("share").sum())
    larger = shares.filter(pl.col("share") > 0.5)[axis]
    if larger.is_empty() or larger.len() == shares.height:
        return ""
    names = capitalized(" and ".join(ends))
    verb = "hold" if len(ends) > 1 else "holds"
    what = UNITS[quantity].removeprefix("bytes of ")
    start = f"{count(larger.sort()[0])} tokens on" + (f" ({title})" if title else "")
    return f"{names} {verb} more than half of the {what} from {start}. "


def _largest_changes(panels: dict[str, pl.DataFrame], axis: str) -> str:
    """Describe the largest decrease and increase of a share, in the panel that changes most."""
    share, at = pl.col("share"), pl.col(axis)
    by_change = {
        title: rows.group_by("group", maintain_order=True)
        .agg(first=share.filter(at == at.min()).first(), last=share.filter(at == at.max()).first())
        .sort(pl.col("last") - pl.col("first"), maintain_order=True)
        .rows()
        for title, rows in panels.items()
    }
    title = max(by_change, key=lambda panel: max(abs(b - a) for _, a, b in by_change[panel]))
    sizes, changes = values(panels[title], axis), by_change[title]
    where = f" ({title})" if title else ""
    if len(sizes) == 1:
        largest, share_of_it, _ = max(changes, key=itemgetter(1))
        return f"{percent(share_of_it)} {largest} at {value_of(axis, sizes[0])}{where}."
    moves = [
        f"the share of {group} {verb} from {percent(first)} to {percent(last)}"
        for (group, first, last), verb in ((changes[0], "falls"), (changes[-1], "rises"))
        if percent(first) != percent(last)
    ]
    changes = " and ".join(moves) or "no share changes"
    return f"From {axis} = {count(sizes[0])} to {count(sizes[-1])}, {changes}{where}."


def first_and_last(panels: dict[str, pl.DataFrame], axis: str, quantity: str) -> str:
    """Describe both ends of the total along an axis, in the panel that changes most."""
    lines = {
        title: totals(rows).sort(axis).select(axis, "total").rows()
        for title, rows in distinct(panels, axis, "total").items()
    }

    def ratio(title: str) -> float:
        first, last = lines[title][0][1], lines[title][-1][1]
        return max(first, last) / min(first, last)

    title = max(lines, key=ratio)
    (low, first), *_, (high, last) = lines[title] * 2
    where = f" ({title})" if title else ""
    if first == last:
        return f"{amount(first, quantity)} at {axis} = {count(low)} to {count(high)}{where}."
    grows = "grows" if last > first else "falls"
    return (
        f"From {axis} = {count(low)} to {count(high)}, the total {grows} from "
        f"{brief(first, quantity)} to {amount(last, quantity)}, "
        f"{times(ratio(title))}{where}."
    )
