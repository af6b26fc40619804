"""Activation checkpointing: bytes of activations against the FLOPs that recomputation adds."""

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, percent
from modelbudget.report.charts import theme
from modelbudget.report.charts.grouped_values import by_value, least_and_most
from modelbudget.report.charts.sweep_tables import SweepTables
from modelbudget.sweeps.fields_in_words import UNITS, value_of

NEEDS = frozenset({"activation_bytes", "flops_forward", "flops_backward"})
SHAPES = {"none": "circle", "selective": "triangle-up", "full": "square"}
MARGIN, HEIGHT = 70, 300
MOST_PANELS = 2


def of_sweep(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Draw bytes of activations against added FLOPs for each kind of checkpointing.

    There is a line for each size of the model, and a panel for each value of the first categorical
    axis.
    """
    kinds = tables.axes.get("recompute", [])
    if len(kinds) < 2 or "none" not in kinds or not tables.measured >= NEEDS:
        return {}
    axes = [axis for axis in tables.axes if axis != "recompute"]
    table = _table(tables.comparison, axes)
    category = next((axis for axis in axes if table[axis].dtype == pl.String), None)
    panels = by_value(table, category, MOST_PANELS)
    drawn = [(title, _panel(rows, table)) for title, rows in panels.items()]
    title = "Activation checkpointing: memory saved against FLOPs added"
    chart = theme.panels(drawn, HEIGHT, title, _savings(panels), MARGIN)
    return {"checkpointing": chart}


def _table(comparison: pl.DataFrame, axes: list[str]) -> pl.DataFrame:
    """Return one row for each point.

    Columns: saved (bytes of activations); added (FLOPs) and dropped (bytes) as shares of those of
    the same model without checkpointing; sizes (the model's sizes as text).
    """
    of = pl.col("quantity")
    rows = (
        comparison.filter(of.is_in(list(NEEDS)), pl.col("measured").is_not_null())
        .group_by("point", "recompute", *axes, maintain_order=True)
        .agg(
            saved=pl.col("measured").filter(of == "activation_bytes").sum(),
            operations=pl.col("measured").filter(of != "activation_bytes").sum(),
        )
    )
    sizes = [name for name in axes if rows[name].dtype.is_integer()]
    texts = [
        ", ".join(value_of(name, row[name]) for name in sizes) for row in rows.iter_rows(named=True)
    ]
    rows = rows.with_columns(sizes=pl.Series(texts, dtype=pl.String))
    plain = rows.filter(pl.col("recompute") == "none").drop("point", "recompute")
    return rows.join(plain, on=["sizes", *axes], suffix="_plain").with_columns(
        added=pl.col("operations") / pl.col("operations_plain") - 1,
        dropped=1 - pl.col("saved") / pl.col("saved_plain"),
    )


def _panel(rows: pl.DataFrame, whole: pl.DataFrame) -> theme.Layers:
    low, high = least_and_most(whole, "saved")
    _, most = least_and_most(whole, "added")
    x = alt.X(
        "added:Q",
        title="FLOPs added to a training step",
        scale=alt.Scale(domain=[0, 1.15 * most], nice=False),
        axis=alt.Axis(format="%", tickCount=4, grid=False),
    )
    y = alt.Y(
        "saved:Q",
        title=UNITS["activation_bytes"],
        scale=alt.Scale(type="log", domain=[low / 1.6, high * 1.3], nice=False),
        axis=theme.vertical(labelExpr=theme.BYTES, **theme.ticks(low, high)),
    )
    drawn = rows.select("sizes", "recompute", "saved", "added", "dropped")
    base = alt.Chart(drawn).encode(x=x, y=y)
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
            tooltip=theme.tooltip(
                {"sizes": "model", "recompute": "recompute"},
                {"saved": "bytes of activations"},
                {"dropped": "memory saved", "added": "FLOPs added"},
            ),
        ),
        base.transform_filter(f"datum.recompute == '{kinds[-1]}'")
        .mark_text(baseline="top", dy=8, color=theme.SOFT)
        .encode(text="sizes:N"),
    )


def _savings(panels: dict[str, pl.DataFrame]) -> str:
    """Describe memory saved and FLOPs added for the largest model of each panel."""
    texts = []
    for title, rows in panels.items():
        largest = rows.filter(pl.col("saved_plain") == pl.col("saved_plain").max())
        saving = largest.filter(pl.col("recompute") != "none")
        (kind, dropped, added), *later = saving.select("recompute", "dropped", "added").rows()
        text = (
            f"{kind} checkpointing saves {percent(dropped)} of the activations for "
            f"{percent(added)} more FLOPs"
        )
        text += "".join(f", {kind} {percent(off)} for {percent(more)}" for kind, off, more in later)
        where = ", ".join(filter(None, (title, largest["sizes"][0])))
        texts.append(capitalized(text) + (f" ({where})." if where else "."))
    return " ".join(texts)
