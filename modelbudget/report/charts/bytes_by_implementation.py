"""One model in one training step by implementation: our module, and the `transformers` class."""

import altair as alt
import polars as pl

from modelbudget.compare.by_implementation import implementations
from modelbudget.components.groups import GROUPS, group_of
from modelbudget.huggingface.components import group_of_class
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import UNITS, capitalized, si_bytes, times
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

NAME = "one-step"
PEAK, SAVED = "peak_training_bytes", "activation_bytes"
OURS, THEIRS = "our module", "transformers"
SHOWN = 0.005
"""Smallest group of components that is drawn, as a share of the largest."""
COLOURS = [GROUPS[name].light for name in ("parameters", "logits and loss")]
"""Colours of our module and of the class: two that differ in lightness as well as in hue."""
PHASES = {
    "first.forward_backward": "1: forward, backward",
    "first.optimizer": "1: optimizer",
    "second.forward_backward": "2: forward, backward",
    "second.optimizer": "2: optimizer",
}
"""Phases of two steps; the optimizer states are created in the first."""
ROW = 40
MARGIN = 150
"""Pixels of a row with two bars, and of the names before the bars."""


def charts_of_classes(
    points: pl.DataFrame, comparison: pl.DataFrame, traces: pl.DataFrame
) -> dict[str, alt.ConcatChart]:
    """Draw peak memory by phase and activations by group of components, for one point.

    The point is the one whose class needs most relative
    to our module; None if there is none with both quantities.
    """
    table = implementations(points, comparison, traces)
    of_peak = table.filter(pl.col("phase").is_not_null(), quantity=PEAK).drop_nulls("ratio")
    saved = table.filter(quantity=SAVED).drop_nulls("ratio")
    highest = of_peak.group_by("point", "label", "class", maintain_order=True).agg(
        pl.col("reference").max(), pl.col("module").max()
    )
    both = highest.join(saved.select("point", saved_ratio="ratio"), on="point")
    both = both.with_columns(ratio=pl.col("reference") / pl.col("module"))
    if both.is_empty():
        return {}
    chosen = both.sort("ratio", descending=True, maintain_order=True).row(0, named=True)
    class_, label = chosen["class"], chosen["label"]
    phases = of_peak.filter(point=chosen["point"]).select(
        "module", "reference", part=pl.col("phase").replace(PHASES)
    )
    of_point = [rows.filter(point=chosen["point"]) for rows in (comparison, traces)]
    groups = _groups(*of_point)
    drawn = theme.framed(
        theme.panels([_panel(phases, PEAK), _panel(groups, SAVED)], 1),
        f"Formula, our module and {class_} of transformers",
        f"The class of {label} saves {times(chosen['saved_ratio'])} the activations of our module "
        f"and needs {times(chosen['ratio'])} its peak memory, {si_bytes(chosen['reference'])} "
        f"against {si_bytes(chosen['module'])}. "
        "The peak is of two training steps; formulas are our module’s.",
        MARGIN,
    )
    return {NAME: drawn}


def _draw(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    if tables.points is None or tables.traces is None:
        return {}
    return charts_of_classes(tables.points, tables.comparison, tables.traces)


def _is_wanted(tables: SweepTables) -> bool:
    """Whether the chart answers the sweep, or is its only one: a table has all ratios anyway."""
    return NAME in tables.summary.get("answered_by", ()) or not tables.drawn


CHART = Chart(_draw, _is_wanted)


def _groups(comparison: pl.DataFrame, traces: pl.DataFrame) -> pl.DataFrame:
    """Return bytes of activations by group of components: part, module, reference."""
    ours = comparison.filter(quantity=SAVED).select(
        part=pl.col("component").map_elements(group_of, pl.String), module="measured"
    )
    theirs = traces.filter(quantity=SAVED).select(
        part=pl.col("component").map_elements(group_of_class, pl.String), reference="reference"
    )
    both = pl.concat([ours, theirs], how="diagonal").group_by("part").sum()
    larger = pl.max_horizontal("module", "reference")
    return both.filter(larger > SHOWN * larger.max()).sort(larger, descending=True)


def _panel(table: pl.DataFrame, quantity: str) -> alt.Chart:
    parts = table["part"].to_list()
    rows = table.rename({"module": OURS, "reference": THEIRS}).unpivot(
        [OURS, THEIRS], index="part", variable_name="implementation", value_name="bytes"
    )
    names = [OURS, THEIRS]
    width = theme.panel_width(1, MARGIN)
    return (
        alt.Chart(rows)
        .mark_bar(height=14)
        .encode(
            x=alt.X(
                "bytes:Q",
                title=UNITS[quantity],
                axis=alt.Axis(labelExpr=theme.tick_labels(quantity), tickCount=5, grid=False),
            ),
            y=alt.Y(
                "part:N", sort=parts, title=None,
                axis=theme.vertical(MARGIN, domain=False, ticks=False, labelLimit=MARGIN),
            ),
            yOffset=alt.YOffset("implementation:N", sort=names),
            color=alt.Color(
                "implementation:N",
                sort=names,
                title=None,
                scale=alt.Scale(domain=names, range=COLOURS),
                legend=alt.Legend(symbolType="square"),
            ),
            tooltip=theme.tooltip(
                {"implementation": "implementation", "part": "part"}, {"bytes": UNITS[quantity]}
            ),
        )
        .properties(
            title=theme.panel_title(capitalized(UNITS[quantity]), width),
            width=width,
            height=ROW * len(parts),
        )
    )  # fmt: skip
