"""A quantity along one axis of a sweep: stacked shares of its components, and its total."""

import altair as alt
import polars as pl

from modelbudget.components.groups import VOCABULARY
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import (
    UNITS,
    amount,
    brief,
    capitalized,
    count,
    field_title,
    percent,
    times,
    value_of,
)
from modelbudget.report.charts.grouped_values import (
    distinct,
    groups_in,
    least_and_most,
    thinned,
    totals,
    values,
)

MOST_VALUES = 120
MARGIN, MARGIN_WITH_TITLE = 52, 70
"""Width in pixels of a vertical axis, without and with a title."""
FEW = 8
"""Up to this number of values an axis has bars; with more it has an area."""


def shares_along(
    table: pl.DataFrame, axis: str, panels: dict[str, pl.DataFrame], quantity: str
) -> alt.ConcatChart:
    """Draw the share of each group along `axis`, with one panel for each named table.

    Equal tables share a panel.
    """
    panels = distinct(panels, axis, "group", "value")
    groups = groups_in(table)
    columns = min(len(panels), 3)
    drawn = [
        _shares(thinned(rows, axis, MOST_VALUES), axis, title, groups, columns)
        for title, rows in panels.items()
    ]
    return theme.framed(
        theme.panels(drawn, columns),
        f"{capitalized(UNITS[quantity])} by component along {axis}",
        _where_the_vocabulary_dominates(panels, axis, quantity) + _largest_changes(panels, axis),
        MARGIN,
        columns,
        groups,
    )


def _shares(
    rows: pl.DataFrame, axis: str, title: str, groups: list[str], columns: int
) -> theme.Layers:
    y = alt.Y(
        "share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=theme.vertical(format="%")
    )
    colour = theme.colour(groups)
    base = alt.Chart(rows.select(axis, "group", "rank", "share", "value", "total"))
    x_title = field_title(axis) if columns < 3 else axis
    if rows[axis].n_unique() <= FEW:
        layers = [
            base.mark_bar(stroke=theme.PAPER, strokeWidth=0.5).encode(
                x=alt.X(
                    f"{axis}:O",
                    title=x_title,
                    axis=alt.Axis(
                        labelExpr=theme.EXACT, labelAngle=0, labelSeparation=2, ticks=False
                    ),
                ),
                y=y,
                color=colour,
                order="rank:Q",
                tooltip=theme.tooltip(
                    {"group": "component"},
                    {axis: axis, "value": "count", "total": "total"},
                    {"share": "share"},
                ),
            )
        ]
    else:
        area = base.mark_area(stroke=theme.PAPER, strokeWidth=0.5, line=False)
        layers = [
            area.encode(x=size(axis, rows, x_title), y=y, color=colour, order="rank:Q"),
            _tooltip_bands(rows, axis, x_title),
        ]
    width = theme.panel_width(columns, MARGIN)
    return alt.layer(*layers).properties(
        title=theme.panel_title(title, width), width=width, height=260
    )


def _tooltip_bands(rows: pl.DataFrame, axis: str, title: str) -> alt.Chart:
    """Draw invisible bands, one around each value, whose tooltip lists all groups exactly."""
    texts = [
        f"{count(value)} ({percent(share)})"
        for value, share in rows.select("value", "share").rows()
    ]
    wide = (
        rows.with_columns(text=pl.Series(texts, dtype=pl.String))
        .pivot("group", index=[axis, "total"], values="text")
        .with_columns(total=pl.col("total").map_elements(count, pl.String))
        .sort(axis)
    )
    groups = [name for name in wide.columns if name not in (axis, "total")]
    # A band reaches halfway to its neighbours: the geometric mean on a logarithmic scale.
    here = pl.col(axis).cast(pl.Float64)
    next_ = here.shift(-1)
    middle = (here * next_).sqrt() if _is_logarithmic(rows, axis) else (here + next_) / 2
    bands = wide.with_columns(left=middle.shift(1).fill_null(here), right=middle.fill_null(here))
    return (
        alt.Chart(bands)
        .mark_rect(color=theme.INK, opacity=0)
        .encode(
            x=size(axis, rows, title, "left"),
            x2="right:Q",
            tooltip=[alt.Tooltip(f"{axis}:Q", format=","), *groups[::-1], "total:N"],
        )
    )


def totals_along(
    table: pl.DataFrame, axis: str, series: dict[str, pl.DataFrame], quantity: str
) -> theme.Layers:
    """Draw the total along `axis` on a logarithmic scale, with one line for each named table.

    Equal tables share a line.
    """
    series = distinct(series, axis, "total")
    names = _differences(list(series))
    rows = pl.concat(
        totals(thinned(rows, axis, MOST_VALUES)).select(axis, "total", series=pl.lit(name))
        for name, rows in zip(names, series.values(), strict=True)
    )
    low, high = least_and_most(rows, "total")
    base = alt.Chart(rows).encode(
        x=size(axis, rows, field_title(axis)),
        y=alt.Y(
            "total:Q",
            title=UNITS[quantity],
            scale=alt.Scale(type="log", nice=False),
            axis=theme.vertical(labelExpr=theme.tick_labels(quantity), **theme.ticks(low, high)),
        ),
        tooltip=theme.tooltip({"series": "line"}, {axis: axis, "total": UNITS[quantity]}),
    )
    # The points are a layer of their own: points of the line would hide the dashes in its legend.
    line = base.mark_line(color=theme.INK, strokeWidth=1.5).encode(strokeDash=theme.dashes(names))
    points = base.mark_point(color=theme.INK, filled=True, size=18, opacity=1)
    title = f"Total {UNITS[quantity]} along {axis}"
    return theme.framed(
        alt.layer(line, points).properties(
            width=theme.panel_width(1, MARGIN_WITH_TITLE), height=220
        ),
        title,
        _first_and_last(rows, axis, quantity, dict(zip(names, series, strict=True))),
        MARGIN_WITH_TITLE,
    )


def _is_logarithmic(rows: pl.DataFrame, axis: str) -> bool:
    """Return whether the sizes span more than a factor of 20, without a zero."""
    low, high = least_and_most(rows, axis)
    return low >= 1 and high > 20 * low


def size(axis: str, rows: pl.DataFrame, title: str, column: str | None = None) -> alt.X:
    """Return the horizontal channel of a size; `column` names another column to read."""
    ends = values(rows, axis)
    logarithmic = _is_logarithmic(rows, axis)
    marks = theme.ticks(ends[0], ends[-1]) if logarithmic else {"tickCount": 5}
    if len(ends) <= FEW:
        marks = {"values": ends}
    return alt.X(
        f"{column or axis}:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False)
        if logarithmic
        else alt.Scale(nice=False, zero=False),
        axis=alt.Axis(
            grid=False,
            labelExpr=theme.EXACT,
            **marks,
        ),
    )


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
    ends = {title: _shares_at_ends(rows, axis) for title, rows in panels.items()}
    title = max(ends, key=lambda panel: max(map(abs, _changes(*ends[panel]).values())))
    sizes, (first, last) = values(panels[title], axis), ends[title]
    where = f" ({title})" if title else ""
    if len(sizes) == 1:
        largest = max(first, key=first.__getitem__)
        return f"{percent(first[largest])} {largest} at {value_of(axis, sizes[0])}{where}."
    change = _changes(first, last)
    moves = [
        f"the share of {group} {verb} from {percent(first[group])} to {percent(last[group])}"
        for group, verb in (
            (min(change, key=change.__getitem__), "falls"),
            (max(change, key=change.__getitem__), "rises"),
        )
        if percent(first[group]) != percent(last[group])
    ]
    changes = " and ".join(moves) or "no share changes"
    return f"From {axis} = {count(sizes[0])} to {count(sizes[-1])}, {changes}{where}."


def _shares_at_ends(rows: pl.DataFrame, axis: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the share of each group at the least and at the largest value of an axis."""
    least, most = (
        dict(rows.filter(pl.col(axis) == end).select("group", "share").iter_rows())
        for end in (values(rows, axis)[0], values(rows, axis)[-1])
    )
    return least, most


def _changes(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    return {group: last[group] - first[group] for group in first}


def _differences(titles: list[str]) -> list[str]:
    """Leave out the settings that all titles share, which the caption names."""
    settings = [title.split(", ") for title in titles]
    return [
        ", ".join(part for part in parts if not all(part in others for others in settings))
        for parts in settings
    ]


def _first_and_last(rows: pl.DataFrame, axis: str, quantity: str, titles: dict[str, str]) -> str:
    """Describe both ends of the line that changes most; `titles` has the full title of each."""

    def ratio(name: str) -> float:
        ends = rows.filter(pl.col("series") == name).sort(axis)["total"]
        return max(ends[0], ends[-1]) / min(ends[0], ends[-1])

    name = max(titles, key=ratio)
    title, line = titles[name], rows.filter(pl.col("series") == name).sort(axis)
    (low, first), (high, last) = (line.select(axis, "total").row(i) for i in (0, -1))
    where = f" ({title})" if title else ""
    if first == last:
        return f"{amount(first, quantity)} at {axis} = {count(low)} to {count(high)}{where}."
    grows = "grows" if last > first else "falls"
    return (
        f"From {axis} = {count(low)} to {count(high)}, the total {grows} from "
        f"{brief(first, quantity)} to {amount(last, quantity)}, "
        f"{times(max(first, last) / min(first, last))}{where}."
    )
