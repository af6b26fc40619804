"""Charts whose axes a sweep chooses, and of each point of quantities that no other chart shows."""

import altair as alt

from modelbudget.report.charts.area_chart import amounts_along, over_axes
from modelbudget.report.charts.component_charts import name_of
from modelbudget.report.charts.grouped_values import amounts_of_points, values
from modelbudget.report.charts.sweep_tables import SweepTables

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
    quantities = {
        name_of(one, EVERY): one for one in whole if is_free or name_of(one, EVERY) in answers
    }
    moving = [name for name in tables.axes if len(values(tables.comparison, name)) > 1]
    if not (quantities or tables.drawn) and tables.measured and moving:
        quantities[EVERY] = min(tables.varying or tables.measured)
    return {
        name: over_axes(amounts_of_points(tables.comparison, quantity), quantity, moving)
        for name, quantity in quantities.items()
    }
