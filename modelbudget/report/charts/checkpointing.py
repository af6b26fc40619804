"""Recomputation: the bytes that are no longer kept, against the operations that this adds."""

import altair as alt
import polars as pl

from modelbudget.report.charts import theme
from modelbudget.report.charts.format import UNITS, percent, value_of

NEEDS = frozenset({"activation_bytes", "flops_forward", "flops_backward"})
SHAPES = {"none": "circle", "selective": "triangle-up", "full": "square"}
MARGIN = 62
MOST_PANELS = 2


def trade(comparison: pl.DataFrame, axes: list[str]) -> alt.ConcatChart:
    """Bytes kept against operations added by each kind of recomputation: a line for each size of
    the model, a panel for each word of the first axis that has words.
    """
    others = [axis for axis in axes if axis != "recompute"]
    table = _table(comparison, others)
    words = [axis for axis in others if table[axis].dtype == pl.String][:1]
    panels = {
        value_of(words[0], rows[words[0]][0]) if words else "": rows
        for rows in (table.partition_by(words, maintain_order=True) if words else [table])
    }
    panels = dict(list(panels.items())[:MOST_PANELS])
    drawn = [_panel(rows, title, table, len(panels)) for title, rows in panels.items()]
    return theme.framed(
        theme.panels(drawn, len(drawn)).resolve_scale(shape="shared"),
        "What it costs to compute again instead of keeping",
        _prices(panels),
        MARGIN,
        len(drawn),
    )


def _table(comparison: pl.DataFrame, others: list[str]) -> pl.DataFrame:
    """One row for each point: saved (bytes), added (operations of the step) and dropped (bytes),
    as shares of what the same model has that recomputes nothing, and the model's sizes as text.
    """
    of = pl.col("quantity")
    rows = (
        comparison.filter(of.is_in(list(NEEDS)), pl.col("measured").is_not_null())
        .group_by("point", "recompute", *others, maintain_order=True)
        .agg(
            saved=pl.col("measured").filter(of == "activation_bytes").sum(),
            operations=pl.col("measured").filter(of != "activation_bytes").sum(),
        )
    )
    sizes = [name for name in others if rows[name].dtype.is_integer()]
    spoken = [
        ", ".join(value_of(name, row[name]) for name in sizes) for row in rows.iter_rows(named=True)
    ]
    rows = rows.with_columns(sizes=pl.Series(spoken, dtype=pl.String))
    plain = rows.filter(pl.col("recompute") == "none").drop("point", "recompute")
    return rows.join(plain, on=["sizes", *others], suffix="_plain").with_columns(
        added=pl.col("operations") / pl.col("operations_plain") - 1,
        dropped=1 - pl.col("saved") / pl.col("saved_plain"),
    )


def _panel(rows: pl.DataFrame, title: str, whole: pl.DataFrame, columns: int) -> alt.LayerChart:
    low, high, most = whole["saved"].min(), whole["saved"].max(), whole["added"].max()
    x = alt.X(
        "added:Q",
        title="operations added to a step",
        scale=alt.Scale(domain=[0, 1.15 * most], nice=False),
        axis=alt.Axis(format="%", tickCount=4, grid=False),
    )
    y = alt.Y(
        "saved:Q",
        title=UNITS["activation_bytes"],
        scale=alt.Scale(type="log", domain=[low / 1.6, high * 1.3], nice=False),
        axis=alt.Axis(labelExpr=theme.SHORT, minExtent=34, maxExtent=34, **theme.ticks(low, high)),
    )
    base = alt.Chart(rows.select("sizes", "recompute", "saved", "added", "dropped")).encode(
        x=x, y=y
    )
    kinds = [kind for kind in SHAPES if kind in whole["recompute"]]
    shape = alt.Shape(
        "recompute:N",
        title="recompute",
        scale=alt.Scale(domain=kinds, range=[SHAPES[kind] for kind in kinds]),
        legend=alt.Legend(symbolFillColor=theme.INK, symbolStrokeWidth=0, symbolSize=70),
    )
    return alt.layer(
        base.mark_line(color=theme.SOFT, strokeWidth=1).encode(detail="sizes:N", order="added:Q"),
        base.mark_point(color=theme.INK, filled=True, size=60, opacity=1).encode(
            shape=shape,
            tooltip=[
                alt.Tooltip("sizes:N", title="model"),
                "recompute:N",
                alt.Tooltip("saved:Q", format=",", title="bytes kept"),
                alt.Tooltip("dropped:Q", format=".2%", title="bytes dropped"),
                alt.Tooltip("added:Q", format=".2%", title="operations added"),
            ],
        ),
        base.transform_filter(f"datum.recompute == '{kinds[-1]}'")
        .mark_text(baseline="top", dy=8, color=theme.SOFT)
        .encode(text="sizes:N"),
    ).properties(
        title=alt.Title(title, fontSize=12, fontWeight="normal", color=theme.INK, offset=6),
        width=theme.panel_width(columns, MARGIN),
        height=300,
    )


def _prices(panels: dict[str, pl.DataFrame]) -> str:
    """What the largest model of each panel drops, and for how much."""
    told = []
    for title, rows in panels.items():
        largest = rows.filter(pl.col("saved_plain") == pl.col("saved_plain").max())
        deals = [
            f"{kind} drops {percent(dropped)} of the bytes for {percent(added)} more operations"
            for kind, dropped, added in largest.select("recompute", "dropped", "added").iter_rows()
            if kind != "none"
        ]
        where = ", ".join(filter(None, (title, largest["sizes"][0])))
        told.append(f"{', '.join(deals)}{f' ({where})' if where else ''}")
    finding = "; ".join(told)
    return finding[0].upper() + finding[1:] + "."
