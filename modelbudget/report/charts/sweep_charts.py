"""All charts of a sweep that is measured, those among them whose axes the sweep chooses."""

import altair as alt

from modelbudget.common.errors import InputError
from modelbudget.report.charts import (
    allocator_overhead,
    checkpointing,
    component_charts,
    devices,
    frontier,
    peak,
    vs_length,
)
from modelbudget.report.charts.area_chart import amounts_along, over_axes
from modelbudget.report.charts.chart_tables import SweepTables, amounts_of_points, values

EVERY = "every-point"
WHOLE = (
    "peak_training_bytes", "peak_inference_bytes", "optimizer_bytes", "request_bytes",
    "flops_decode",
)  # fmt: skip
"""Quantities of a grid that have a chart of every point where no other chart shows them."""
SHOWN_BY = {
    "by-layout": {*WHOLE},
    "peak-parts": {"peak_training_bytes", "optimizer_bytes"},
    "inference-parts": {"peak_inference_bytes", "flops_decode"},
    "checkpointing": {"peak_training_bytes"},
}
"""What charts of several quantities show of these."""


def by_choice(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Return the charts of a sweep's key `charts`, by name."""
    charts = {}
    for i, choice in enumerate(tables.summary.get("charts", ()), start=1):
        y = choice["y"] or tables.summary["measure"]["quantities"][0]
        rows = amounts_of_points(tables.comparison, y)
        if not rows.is_empty():
            charts[f"chosen-{i}"] = amounts_along(
                rows, y, choice["x"], choice["colour"], choice["facet"]
            )
    return charts


def every_point(tables: SweepTables) -> dict[str, alt.ConcatChart]:
    """Draw each point of a grid, of quantities that no other chart shows.

    A sweep that chooses its charts, or its answer, has those that it names.
    """
    if not tables.axes:
        return {}
    shown = set[str]().union(*(SHOWN_BY.get(name, ()) for name in tables.drawn))
    answers = tables.summary.get("answered_by", ())
    is_free = not answers and not any(name.startswith("chosen-") for name in tables.drawn)
    whole = [name for name in WHOLE if name in tables.varying and name not in shown]
    named = {component_charts.name_of(quantity, EVERY): quantity for quantity in whole}
    quantities = {name: of for name, of in named.items() if is_free or name in answers}
    moving = [name for name in tables.axes if len(values(tables.comparison, name)) > 1]
    if not (quantities or tables.drawn) and tables.measured and moving:
        quantities[EVERY] = min(tables.varying or tables.measured)
    return {
        name: over_axes(amounts_of_points(tables.comparison, quantity), quantity, moving)
        for name, quantity in quantities.items()
    }


KINDS = (
    by_choice, devices.by_layout, peak.of_sweep, allocator_overhead.of_sweep,
    checkpointing.of_sweep, vs_length.of_sweep, component_charts.of_sweep, every_point,
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
