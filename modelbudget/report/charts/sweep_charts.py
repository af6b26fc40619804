"""All charts of a sweep that is measured."""

import altair as alt

from modelbudget.common.errors import InputError
from modelbudget.report.charts import (
    allocator_overhead,
    bytes_by_implementation,
    checkpointing,
    chosen,
    component_charts,
    devices,
    frontier,
    peak,
    vs_length,
)
from modelbudget.report.charts.sweep_tables import Chart, SweepTables

CHARTS: tuple[Chart, ...] = (
    chosen.CHOSEN, devices.BY_LAYOUT, peak.TRAINING, peak.INFERENCE,
    allocator_overhead.CHART, devices.BY_NUMBER, checkpointing.CHART, vs_length.CHART,
    component_charts.CHART, chosen.EVERY_POINT, bytes_by_implementation.CHART,
)  # fmt: skip
"""Of a sweep without `solve`, in the order of the page. Of two of one name the first is drawn."""


def charts_of(tables: SweepTables) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of a sweep by name, in the order of the page."""
    charts = {}
    for chart in (frontier.CHART,) if tables.solved else CHARTS:
        if chart.needs(tables):
            charts |= {k: v for k, v in chart.draw(tables).items() if k not in charts}
            tables.drawn.update(charts)
    return charts


def sweep_charts(tables: SweepTables) -> dict[str, alt.TopLevelMixin]:
    """Return the same, those first that the sweep file names as its answer."""
    charts, first = charts_of(tables), tables.summary["answered_by"]
    for name in first:
        if name not in charts:
            allowed = ", ".join(charts) or "none"
            raise InputError([f"answered_by = {name!r}: no chart of the sweep; allowed: {allowed}"])
    return {name: charts[name] for name in (*first, *(n for n in charts if n not in first))}
