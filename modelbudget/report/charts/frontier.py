"""The shapes within bounds: the frontier of the best, and published models."""

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from modelbudget.common.number_format import count, si_bytes
from modelbudget.predict.shape_search import BEYOND
from modelbudget.report.charts import theme
from modelbudget.report.charts.chart_tables import SweepTables
from modelbudget.sweeps.fields_in_words import field_title

MARGIN, HEIGHT = 66, 340
MOST = 1_500
"""Solutions, and shapes on the frontier, that are drawn; of more, every second, third, …"""
WIDE_RANGE = 10
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
NEAREST = 3
"""Published models that are shown if none is within the bounds. The first one has its name."""

Best = Mapping[str, str]


def solve_charts(
    solutions: pl.DataFrame, frontier: pl.DataFrame, published: pl.DataFrame, best: Best
) -> dict[str, theme.Layers]:
    """Return a chart of the first two objectives; none if there is only one."""
    if len(best) < 2:
        return {}
    models = published.filter(pl.col(BEYOND) == 0)
    if models.is_empty():
        models = published.drop_nulls(BEYOND).head(NEAREST)
    first, second = list(best)[:2]
    drawn, front = (
        table.gather_every(-(-table.height // MOST))
        for table in (solutions.drop_nulls(list(best)).unique([first, second], maintain_order=True),
                    frontier)
    )  # fmt: skip
    ends = pl.concat([table.select(first, second).cast(pl.Float64) for table in (drawn, models)])
    x, y = _axis(alt.X, first, ends[first]), _axis(alt.Y, second, ends[second])
    tooltip = [
        alt.Tooltip(f"{name}:Q", format=",") if dtype.is_integer() else alt.Tooltip(f"{name}:N")
        for name, dtype in frontier.schema.items()
    ]
    steps = "step-before" if best[first] == "most" else "step-after"
    line = alt.Chart(front).mark_line(color=theme.INK, interpolate=steps).encode(x=x, y=y)
    chart = alt.layer(
        alt.Chart(drawn.select(first, second))
        .mark_point(color=theme.SOFT, filled=True, size=20, opacity=0.35)
        .encode(x=x, y=y),
        *([line] if len(best) == 2 else []),
        alt.Chart(front).mark_point(color=theme.INK, filled=True, size=55, opacity=1)
        .encode(x=x, y=y, tooltip=tooltip),
        alt.Chart(models).mark_point(color=theme.DIFFERS, filled=True, size=70, opacity=1)
        .encode(x=x, y=y, tooltip=["label:N", f"{first}:Q", f"{second}:Q"]),
        alt.Chart(models.head(1)).mark_text(color=theme.INK, align="left", dx=8, fontSize=11)
        .encode(x=x, y=y, text="label:N"),
    ).properties(width=theme.WIDTH - MARGIN, height=HEIGHT)  # fmt: skip
    wanted = " and ".join(f"the {wanted} {name}" for name, wanted in best.items())
    finding = [
        answer(frontier, best),
        f"Dark: the shapes with {wanted}.",
        _models(frontier, models, best),
    ]
    title = f"All shapes within the bounds, by {first} and {second}"
    return {"frontier": theme.framed(chart, title, " ".join(finding), MARGIN)}


def of_sweep(tables: SweepTables) -> dict[str, theme.Layers]:
    """Return the chart of a sweep with `solve`."""
    return solve_charts(*tables.solved, best=tables.summary["solve"]["best"])


def _axis(channel, name: str, values: pl.Series) -> Any:
    """Return the axis of an objective, with room around its values."""
    low, high = float(values.to_numpy().min()), float(values.to_numpy().max())
    logarithmic = low > 0 and high > WIDE_RANGE * low
    if logarithmic:
        low, high = low / 1.15, high * 1.15
        marks = theme.ticks(int(low), int(high))
    else:
        room = (high - low) / 20 or 1
        low, high = low - room, high + room
        marks: dict[str, Any] = {"tickCount": 6}
    scale = alt.Scale(type="log" if logarithmic else "linear", domain=[low, high], nice=False)
    label = theme.BYTES if name.endswith("_bytes") else theme.EXACT
    axis_of = theme.vertical if channel is alt.Y else alt.Axis
    axis = axis_of(labelExpr=label, **marks)
    return channel(f"{name}:Q", title=field_title(name), scale=scale, axis=axis)


def amount(name: str, value: int) -> str:
    """Format the value of a field or quantity: exact, or bytes with SI units."""
    return si_bytes(value) if name.endswith("_bytes") else count(value)


def answer(frontier: pl.DataFrame, best: Best) -> str:
    """State what one percent of the first objective costs of the second, over the whole frontier.

    As the ratio of logarithms of the ends, unless an objective is 0 or the same in both.
    """
    first, second = list(best)[:2]
    (low, of_low), *_, (high, of_high) = frontier.sort(first).select(first, second).rows() * 2
    if len(best) > 2 or min(low, of_low, high, of_high) <= 0 or low == high:
        return f"On the frontier of the best: {count(frontier.height)}."
    price = math.log(of_high / of_low) / math.log(high / low)
    change = "more" if best[first] == "most" else "less"
    of = "of" if best[second] == "most" else "more"
    return f"One percent {change} {first} costs {abs(price):.2g} % {of} {second}."


def _models(frontier: pl.DataFrame, models: pl.DataFrame, best: Best) -> str:
    """Compare the first published model with the shape best in the second objective.

    Among those that are as good in the others.
    """
    if models.is_empty():
        return "No published model has these quantities."
    model = models.row(0, named=True)
    if model[BEYOND]:
        return f"No published model is within the bounds; the nearest is {model['label']}."
    first, second, *rest_of_best = best
    has = f"{model['label']} has {second} {amount(second, model[second])}"
    as_good = frontier.filter(
        pl.col(name) >= model[name] if best[name] == "most" else pl.col(name) <= model[name]
        for name in (first, *rest_of_best)
    )
    bound = "of at least" if best[first] == "most" else "of at most"
    wanted = f"{first} {bound} {amount(first, model[first])}"
    if as_good.is_empty():
        return f"{has}; no shape of the grid has {wanted}."
    possible = as_good[second].sort(descending=best[second] == "most")[0]
    return f"{has}; with {wanted}, {amount(second, possible)} is possible."
