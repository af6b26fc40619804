"""Activations of one model by implementation: our module, and the `transformers` class."""

import polars as pl

from modelbudget.common.number_format import si_bytes, times
from modelbudget.compare.class_table import implementations, peaks
from modelbudget.components.groups import group_of
from modelbudget.huggingface.components import group_of_class
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import stacked_bars
from modelbudget.report.charts.grouped_values import RANK
from modelbudget.report.charts.sweep_tables import SweepTables

NAME = "one-step"
PEAK, SAVED = "peak_training_bytes", "activation_bytes"
IMPLEMENTATIONS = {"module": "our module", "reference": "the class"}
SHOWN = 0.005
"""Smallest group of components that is drawn, as a share of the largest."""


def of_sweep(tables: SweepTables) -> dict[str, theme.Layers]:
    """Draw the chart where it answers the sweep, or is its only one: a table has all ratios."""
    if tables.points is None or tables.traces is None:
        return {}
    is_answer = NAME in tables.summary.get("answered_by", ())
    if tables.drawn and not is_answer:
        return {}
    return charts_of_classes(tables.points, tables.comparison, tables.traces)


def charts_of_classes(
    points: pl.DataFrame, comparison: pl.DataFrame, traces: pl.DataFrame
) -> dict[str, theme.Layers]:
    """Draw activations by group of components, of our module and of the class, for one point.

    The point is the one whose class needs most relative to our module at the peak; None if there
    is none with both quantities.
    """
    table = peaks(implementations(points, comparison, traces)).drop_nulls(["module", "reference"])
    saved = table.filter(quantity=SAVED).select("point", saved_ratio="ratio")
    both = table.filter(quantity=PEAK).join(saved, on="point")
    if both.is_empty():
        return {}
    chosen = both.sort("ratio", descending=True, maintain_order=True).row(0, named=True)
    class_, label = chosen["class"], chosen["label"]
    of_point = [rows.filter(point=chosen["point"]) for rows in (comparison, traces)]
    drawn = stacked_bars(
        _groups(*of_point).with_columns(
            point=pl.lit(chosen["point"]), label=pl.lit(f"{label}; the class in total:")
        ),
        SAVED,
        f"Activations of our module and of {class_} of transformers",
        f"{class_} saves {times(chosen['saved_ratio'])} the activations of our module and needs "
        f"{times(chosen['ratio'])} its peak memory, {si_bytes(chosen['reference'])} against "
        f"{si_bytes(chosen['module'])} ({label}). "
        "The peak is of two training steps; formulas are our module’s.",
        phases=IMPLEMENTATIONS,
    )
    return {NAME: drawn}


def _groups(comparison: pl.DataFrame, traces: pl.DataFrame) -> pl.DataFrame:
    """Return bytes of activations by implementation, as `phase`, and group of components."""
    of_component = {
        "module": (comparison, "measured", group_of),
        "reference": (traces, "reference", group_of_class),
    }
    rows = pl.concat(
        table.filter(quantity=SAVED)
        .select(group=pl.col("component").map_elements(group, pl.String), value=column)
        .group_by("group", maintain_order=True)
        .sum()
        .with_columns(phase=pl.lit(phase), total=pl.col("value").sum(), rank=RANK)
        for phase, (table, column, group) in of_component.items()
    )
    shown = rows.filter(pl.col("value") > SHOWN * pl.col("value").max())
    return shown.sort("phase", "rank", descending=[True, False])
