"""All charts of a sweep that is measured."""

import altair as alt

from modelbudget.common.errors import InputError
from modelbudget.report.charts import (
    allocator_overhead,
    checkpointing,
    chosen,
    component_charts,
    devices,
    frontier,
    peak,
    vs_length,
)
from modelbudget.report.charts.sweep_tables import SweepTables

KINDS = (
    chosen.by_choice, devices.by_layout, peak.of_sweep,
    allocator_overhead.of_sweep, checkpointing.of_sweep, vs_length.of_sweep,
    component_charts.of_sweep, chosen.every_point,
)  # fmt: skip
"""Functions that return charts of a kind by name, none of a sweep that the kind says nothing about.

Of a sweep without `solve`, in the order of the page. Of two of one name the first is drawn.
"""


def charts_of(tables: SweepTables) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of a sweep by name, in the order of the page."""
    charts = {}
    for kind in (frontier.of_sweep,) if tables.solved else KINDS:
        charts |= {name: chart for name, chart in kind(tables).items() if name not in charts}
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
