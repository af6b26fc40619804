"""The charts of a sweep file: what each has on its axes, and which answer the question."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from modelbudget.architecture.terms import GROUP_TITLES
from modelbudget.common.strict import Strict
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.sweeps.quantity_names import Quantity

OF_QUANTITY = "shares", "total", "models", "every-point", "vocabulary"
"""Names of charts of one quantity, beside those of its groups of components: that of parameters has
no prefix.
"""
OF_SWEEP = (
    "frontier", "by-layout", "peak-parts", "inference-parts",
    "allocator-overhead", "checkpointing",
)  # fmt: skip
OF_BASE = ("by-layout",)
"""Charts of which there may be one for each base, after whose name it is called."""


class ChartChoice(Strict):
    """One chart: a line for each value of `colour`, a panel for each value of `facet`."""

    x: str
    y: Quantity | None = None
    colour: str | None = None
    facet: str | None = None

    @property
    def fields(self) -> list[str]:
        """The fields of the points, those that are not set left out."""
        return [name for name in (self.x, self.colour, self.facet) if name is not None]


def chart_mistakes(
    charts: Sequence[ChartChoice],
    axes: Mapping[str, Sequence],
    points: Sequence[Mapping[str, Any]],
    derived: Container[str],
    quantities: Sequence[str],
) -> Iterator[tuple[set[str], str]]:
    """Yield what is wrong with the charts of a sweep: the keys concerned, and the mistake.

    `axes`: the values of its grid; `points`: those that it lists; `derived`: fields that it derives
    from others; `quantities`: what it measures.

    A field that varies and is not in a chart would put several points in one place.
    """
    of_grid = {name for name, values in axes.items() if len(values) > 1}
    of_points = {name for point in points for name in point} - {"label"}
    varying = sorted(of_grid | of_points)
    allowed = ", ".join(varying) or "none: no field varies"
    for i, chart in enumerate(charts):
        keys = {"charts", "grid", "points"}
        wrong = [
            f"charts[{i}].{key} = {show(name)}: "
            f"{'is derived, no axis' if name in derived else 'does not vary'}; allowed: {allowed}"
            for key, name in (("x", chart.x), ("colour", chart.colour), ("facet", chart.facet))
            if name is not None and name not in varying
        ]
        not_drawn = [name for name in varying if name not in chart.fields]
        if len(set(chart.fields)) < len(chart.fields):
            wrong.append(f"charts[{i}]: x, colour and facet must be different fields")
        elif not_drawn and axes and not wrong:
            wrong.append(f"charts[{i}]: {not_drawn[0]} varies too; name it as colour or facet")
        yield from ((keys, what) for what in wrong)
        if chart.y is not None and chart.y not in quantities:
            measured = ", ".join(quantities)
            what = f"charts[{i}].y = {show(chart.y)}: is not in measure.quantities; allowed: "
            yield {"charts", "measure"}, what + measured


def answer_mistakes(
    names: Sequence[str], n_chosen: int, quantities: Sequence[str], bases: Sequence[str]
) -> Iterator[tuple[set[str], str]]:
    """Yield which of the charts that answer a sweep no sweep of its quantities and bases has.

    Those of `report.charts`: which of these a sweep has, its values decide, when they are drawn.
    `n_chosen`: charts of the key `charts`.
    """
    of_groups = [group.replace(" ", "-") for group in GROUP_TITLES]
    of_quantities = [
        name if quantity == "parameters" else f"{quantity.replace('_', '-')}-{name}"
        for quantity in quantities
        for name in (*OF_QUANTITY, *of_groups)
    ]
    chosen = [f"chosen-{i}" for i in range(1, n_chosen + 1)]
    of_bases = [f"{name}-{base}" for name in OF_BASE for base in bases]
    allowed = {*of_quantities, *chosen, *of_bases, *OF_SWEEP}
    for i, name in enumerate(names):
        if name not in allowed:
            near = offered(name, sorted(allowed), "docs/results.md")
            yield {"answered_by", "measure"}, f"answered_by[{i}] = {show(name)}: no chart{near}"
