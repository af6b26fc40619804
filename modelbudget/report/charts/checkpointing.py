"""Activation checkpointing: bytes of activations against the FLOPs that recomputation adds."""

import altair as alt
import polars as pl

from modelbudget.common.number_format import capitalized, percent
from modelbudget.report.charts.area_chart import SERIES, amounts_along
from modelbudget.report.charts.chart_tables import SweepTables, by_value
from modelbudget.sweeps.fields_in_words import value_of

NEEDS = frozenset({"activation_bytes", "flops_forward", "flops_backward"})
ADDED = "FLOPs added to a training step"
MOST_PANELS = 2


def of_sweep(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Draw bytes of activations against added FLOPs, with a point for each kind of checkpointing.

    There is a line for each size of the model, and a panel for each value of the first categorical
    axis.
    """
    kinds = tables.axes.get("recompute", [])
    if len(kinds) < 2 or "none" not in kinds or not tables.measured >= NEEDS:
        return {}
    axes = [axis for axis in tables.axes if axis != "recompute"]
    rows = _table(tables.comparison, axes)
    category = next((axis for axis in axes if rows[axis].dtype == pl.String), None)
    panels = by_value(rows, category, MOST_PANELS)
    rows = pl.concat(panels.values())
    title = "Activation checkpointing: memory saved against FLOPs added"
    series = SERIES if rows[SERIES].n_unique() > 1 else None
    in_order = rows.sort(ADDED)["recompute"].unique(maintain_order=True)
    finding = f"{_savings(panels)} From left to right: {', '.join(in_order)}."
    return {
        "checkpointing": amounts_along(
            rows, "activation_bytes", ADDED, series, category, finding=finding, title=title
        )
    }


def _table(comparison: pl.DataFrame, axes: list[str]) -> pl.DataFrame:
    """Return one row for each point.

    Columns: value (bytes of activations); ADDED (FLOPs) and dropped (bytes) as shares of those of
    the same model without checkpointing; series (the model's sizes as text).
    """
    of = pl.col("quantity")
    rows = (
        comparison.filter(of.is_in(list(NEEDS)), pl.col("measured").is_not_null())
        .group_by("point", "label", "recompute", *axes, maintain_order=True)
        .agg(
            value=pl.col("measured").filter(of == "activation_bytes").sum(),
            operations=pl.col("measured").filter(of != "activation_bytes").sum(),
        )
    )
    sizes = [name for name in axes if rows[name].dtype.is_integer()]
    texts = [
        ", ".join(value_of(name, row[name]) for name in sizes) for row in rows.iter_rows(named=True)
    ]
    rows = rows.with_columns(pl.Series(SERIES, texts, dtype=pl.String))
    plain = rows.filter(pl.col("recompute") == "none").drop("point", "label", "recompute")
    return rows.join(plain, on=[SERIES, *axes], suffix="_plain").with_columns(
        (pl.col("operations") / pl.col("operations_plain") - 1).alias(ADDED),
        dropped=1 - pl.col("value") / pl.col("value_plain"),
    )


def _savings(panels: dict[str, pl.DataFrame]) -> str:
    """Describe memory saved and FLOPs added for the largest model of each panel."""
    texts = []
    for title, rows in panels.items():
        largest = rows.filter(pl.col("value_plain") == pl.col("value_plain").max())
        saving = largest.filter(pl.col("recompute") != "none")
        (kind, dropped, added), *later = saving.select("recompute", "dropped", ADDED).rows()
        text = (
            f"{kind} checkpointing saves {percent(dropped)} of the activations for "
            f"{percent(added)} more FLOPs"
        )
        text += "".join(f", {kind} {percent(off)} for {percent(more)}" for kind, off, more in later)
        where = ", ".join(filter(None, (title, largest[SERIES][0])))
        texts.append(capitalized(text) + (f" ({where})." if where else "."))
    return " ".join(texts)
