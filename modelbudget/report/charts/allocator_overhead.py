"""Overhead of the CUDA caching allocator: memory beyond what the tensors request, by model."""

import altair as alt
import polars as pl

from modelbudget.common.number_format import percent, si_bytes
from modelbudget.compare.comparison import SIMULATED, value
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import line, lines_of, names_and_totals
from modelbudget.report.charts.chart_tables import SweepTables, named_ends

SHAPES = {"blocks (allocated)": "circle", "segments (reserved)": "triangle-right"}
KINDS = dict(zip(("peak_allocated_bytes", "peak_reserved_bytes"), SHAPES, strict=True))
REQUESTED = "peak_requested_bytes"
NEEDS = frozenset((*KINDS, REQUESTED))


def of_sweep(tables: SweepTables) -> dict[str, theme.Layers]:
    """Draw the peaks of blocks and of segments, relative to the peak of the requested bytes.

    They are measured on a CUDA device, or simulated without one.
    """
    known = tables.comparison.filter(value().is_not_null())["quantity"]
    if not ({*known} >= NEEDS and tables.has_bars):
        return {}
    table = _table(tables.comparison)
    models = table.unique("point", keep="first", maintain_order=True)
    requested = pl.col("requested").map_elements(si_bytes, pl.String) + " requested"
    y, height = lines_of(models)
    shape = alt.Scale(domain=list(SHAPES), range=list(SHAPES.values()))
    marks = (
        alt.Chart(table.with_columns(line=line()))
        .mark_point(color=theme.INK, fill=theme.INK, size=55, opacity=1)
        .encode(
            y=y,
            x=alt.X(
                "share:Q",
                title="memory above the requested bytes",
                axis=alt.Axis(format="%", tickCount=6, labelFlush=True),
            ),
            shape=alt.Shape("kind:N", title=None, sort=list(SHAPES), scale=shape),
            tooltip=theme.tooltip(
                {"label": "model", "kind": "kind", "method": "simulated, or measured on"},
                {"bytes": "bytes", "requested": "requested"},
                {"share": "above requested"},
            ),
        )
    )
    texts = names_and_totals(models.with_columns(total=requested), y)
    chart = alt.layer(marks, *texts).properties(width=theme.WIDTH, height=height)
    all_simulated = table["method"].unique().to_list() == [SIMULATED]
    title = "Overhead of the CUDA caching allocator" + (", simulated" if all_simulated else "")
    allocated, reserved = (table.filter(kind=kind) for kind in SHAPES)
    finding = (
        f"The allocator reserves {named_ends(reserved, 'share', percent)} more than the tensors "
        f"request. Rounding to blocks adds at most {percent(max(allocated['share']))}; the rest "
        "is fragmentation."
    )
    return {"allocator-overhead": theme.framed(chart, title, finding, 0)}


def _table(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × kind.

    Columns: point, label, method, requested, bytes, kind, share. Points with a missing quantity are
    left out.
    """
    of = pl.col("quantity")
    simulated = pl.when(pl.col("measured").is_null()).then(pl.lit(SIMULATED))
    return (
        comparison.filter(of.is_in(list(NEEDS)))
        .with_columns(bytes=value(), method=pl.coalesce(simulated, "method"))
        .drop_nulls("bytes")
        .group_by("point", "label", "quantity", maintain_order=True)
        .agg(pl.col("bytes").max(), pl.col("method").first())
        .with_columns(requested=pl.col("bytes").filter(of == REQUESTED).first().over("point"))
        .filter(of != REQUESTED, pl.col("requested").is_not_null())
        .with_columns(
            kind=of.replace_strict(KINDS, return_dtype=pl.String),
            share=pl.col("bytes") / pl.col("requested") - 1,
        )
        .drop("quantity")
    )
