"""Select the charts of a sweep from its axes and measured quantities."""

import math
from collections.abc import Sequence

import altair as alt
import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.compare.by_implementation import implementations
from modelbudget.compare.comparison import value
from modelbudget.components.groups import PLAIN_LAYER, VOCABULARY
from modelbudget.report.charts import (
    allocator_overhead,
    checkpointing,
    inference_memory,
    peak,
    theme,
    vs_length,
)
from modelbudget.report.charts import devices as devices_chart
from modelbudget.report.charts.area_chart import shares_along, totals_along
from modelbudget.report.charts.bar_chart import amounts, bars
from modelbudget.report.charts.bytes_by_implementation import by_implementation
from modelbudget.report.charts.chosen import every_point
from modelbudget.report.charts.format import value_of
from modelbudget.report.charts.grouped_values import budget, evenly_spaced, values
from modelbudget.report.charts.heatmaps import MOST_VALUES, share_over, total_over
from modelbudget.report.charts.resident_memory import resident_memory_charts
from modelbudget.report.charts.strip_chart import strip

SIDE_BY_SIDE = 3
"""A size with up to this number of values is split into panels; with more it is an axis."""
EVERY = "every-point"
MOST_PANELS = 4
MOST_BARS = 40
"""Up to this number of models there is a bar for each; more are drawn as a strip."""
DRAWN = ("parameters", "activation_bytes", "cache_bytes", "flops_forward")
"""Quantities with charts by component. Gradients and optimizer state are distributed as
parameters, and a backward pass as a forward pass, so they have none.
"""
WHOLE = (
    "peak_training_bytes", "peak_inference_bytes", "optimizer_bytes", "request_bytes",
    "flops_decode",
)  # fmt: skip
"""Quantities of a grid that have a chart of every point where no other chart shows them."""
CACHE = {"cache_bytes"}
SHOWN_BY = {
    "devices": {*WHOLE},
    "peak-parts": {"peak_training_bytes", "optimizer_bytes"},
    "inference-parts": {"peak_inference_bytes", "flops_decode"},
    "checkpointing": {"peak_training_bytes"},
}
"""What charts of several quantities show of these."""


def charts_of_sweep(
    axes: dict[str, list], comparison: pl.DataFrame, devices: list[Accelerator]
) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of a sweep by name, in the order of the page.

    First those of several quantities, then those of each quantity by component, then those of
    process memory. `axes` maps the fields of the grid to their values, in the order of the file.
    """
    measured = set(comparison.drop_nulls("measured")["quantity"].unique())
    found = _of_several(axes, comparison, devices, measured)
    # What a device computes of its own sequences does not depend on their number.
    constant = {"activation_bytes", "flops_forward"} if "devices" in found else set()
    varying = {quantity for quantity in measured if _varies(comparison, quantity)}
    if axes and varying:
        constant |= measured - varying
        shown = set[str]().union(*(SHOWN_BY.get(name, ()) for name in found))
        whole = [name for name in WHOLE if name in varying - shown]
    else:
        whole = []
    for quantity in DRAWN:
        if quantity in measured - constant:
            for name, chart in charts(axes, comparison, quantity).items():
                found.setdefault(_name(quantity, name), chart)
    fields = [field for field in axes if len(values(comparison, field)) > 1]
    found |= {_name(name, EVERY): every_point(comparison, fields, name) for name in whole}
    if measured and "devices" not in found and (many := _moving(axes, comparison)):
        first = next((name for name in DRAWN if name in measured), min(measured))
        found[EVERY] = every_point(comparison, many, first)
    return found | resident_memory_charts(comparison)


def _varies(comparison: pl.DataFrame, quantity: str) -> bool:
    """Return whether the values of a quantity's components differ among points."""
    rows = comparison.filter(pl.col("quantity") == quantity, value() != 0)
    points = pl.col("point").n_unique()
    differs = (value().n_unique().over("component") > 1) | (points.over("component") < points)
    return bool(rows.select(differs.any()).item())


def _moving(axes: dict[str, list], comparison: pl.DataFrame) -> list[str]:
    """Return the axes of a grid that has some values in no other chart, else nothing.

    Others hold a third axis at its middle value, and leave out values of an axis that has many.
    """
    moving = [field for field in axes if len(values(comparison, field)) > 1]
    has_many = any(len(values(comparison, field)) > MOST_VALUES for field in moving)
    return moving if len(moving) > 2 or (len(moving) == 2 and has_many) else []


def charts_of_classes(
    points: pl.DataFrame, comparison: pl.DataFrame, traces: pl.DataFrame
) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of a sweep whose classes are traced, by name."""
    table = implementations(points, comparison, traces)
    chart = by_implementation(comparison, traces, table)
    return {"one-step": chart} if chart else {}


def _name(quantity: str, chart: str) -> str:
    return chart if quantity == "parameters" else f"{quantity.replace('_', '-')}-{chart}"


def is_of_whole(name: str) -> bool:
    """Return whether a chart is there because no other shows its quantity."""
    return name in {_name(quantity, EVERY) for quantity in WHOLE}


def _of_several(
    axes: dict[str, list], comparison: pl.DataFrame, devices: list[Accelerator], measured: set[str]
) -> dict[str, alt.TopLevelMixin]:
    """Return charts of peak memory, the CUDA allocator, checkpointing and length, where they apply.

    Peak memory is drawn if the models are listed one by one or are the only axis.
    """
    found = {}
    few = axes.keys() <= {"base"} and comparison["point"].n_unique() <= MOST_BARS
    if few:
        found |= devices_chart.by_layout(comparison, devices)
    if few and not (parts := peak.peak_parts(comparison)).is_empty():
        found["peak-parts"] = peak.training_memory(parts)
        found["peak-accelerators"] = peak.against_accelerators(parts, devices)
    if few and not (parts := inference_memory.inference_parts(comparison)).is_empty():
        found["inference-parts"] = inference_memory.inference_memory(parts)
    known = set(comparison.filter(value().is_not_null())["quantity"])
    if known >= allocator_overhead.NEEDS and comparison["point"].n_unique() <= MOST_BARS:
        found["allocator-overhead"] = allocator_overhead.overhead(comparison)
    if chart := devices_chart.by_number(comparison, axes, devices):
        found["devices"] = chart
    kinds = axes.get("recompute", [])
    if len(kinds) > 1 and "none" in kinds and measured >= checkpointing.NEEDS:
        found["checkpointing"] = checkpointing.memory_against_flops(comparison, list(axes))
    if len(axes.get("length", [])) > SIDE_BY_SIDE:
        # A cache is drawn as a share of the weights.
        lengths = vs_length.TITLES.keys() & measured
        for quantity in sorted(lengths if "parameter_bytes" in measured else lengths - CACHE):
            found[_name(quantity, "total")] = vs_length.by_length(comparison, quantity)
    return found


def charts(
    axes: dict[str, list], comparison: pl.DataFrame, quantity: str = "parameters"
) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of one quantity by name.

    `axes` maps the fields of the grid to their values, in the order of the file. A grid with one
    size axis gets shares and total along it; with two, also heatmaps. Boolean and categorical
    fields, and sizes with few values, become panels; remaining axes are fixed at their middle
    values. Points listed one by one get a bar each, or a strip if there are many.
    """
    table = budget(comparison, quantity)
    # Points are numbered as the sweep file gives them: the grid's first, then those one by one.
    in_grid = pl.col("point").cast(pl.Int64) <= math.prod(map(len, axes.values())) * bool(axes)
    grid, given = table.filter(in_grid), table.filter(~in_grid)
    found = {}
    if not grid.is_empty():
        found |= _of_grid(grid, list(axes), quantity)
    if chart := _one_by_one(given, quantity):
        found["models"] = chart
    return found


def _of_grid(table: pl.DataFrame, fields: list[str], quantity: str) -> dict:
    moving = [field for field in fields if len(values(table, field)) > 1]
    sizes = [field for field in moving if table[field].dtype.is_integer()]
    long = [field for field in sizes if len(values(table, field)) > SIDE_BY_SIDE] or sizes[:1]
    if not long:
        chart = _one_by_one(table, quantity)
        return {"models": chart} if chart else {}
    main, *second = long[:2]
    others = [field for field in moving if field not in (main, *second)]
    panels = _panels(table, others)
    found = {}
    if not second:
        if _is_shared(table):
            found["shares"] = shares_along(table, main, panels, quantity)
        found["total"] = totals_along(table, main, panels, quantity)
        return found
    (second,) = second
    slices = (
        {_join(name, held): rows for name, whole in panels.items()
         for held, rows in _panels(whole, [], hold=[second]).items()}
        if len(panels) > 1
        else _panels(next(iter(panels.values())), [second])
    )  # fmt: skip
    found["shares"] = shares_along(table, main, slices, quantity)
    found["total"] = total_over(main, second, panels, quantity)
    for name, groups in _varying_groups(table).items():
        found[name] = share_over(main, second, panels, groups, quantity)
    return found


def _is_shared(table: pl.DataFrame) -> bool:
    """Return whether some point has more than one group, so that there are shares to draw."""
    return table.filter(pl.col("value") > 0)["point"].is_duplicated().any()


def _one_by_one(table: pl.DataFrame, quantity: str) -> theme.Layers | None:
    """Draw the shares of each model, or its amount if no model has more than one group."""
    few = table["point"].n_unique() <= MOST_BARS
    if table.is_empty() or not (few or _is_shared(table)):
        return None
    if not few:
        return strip(table, quantity)
    return (bars if _is_shared(table) else amounts)(table, quantity)


def _panels(table: pl.DataFrame, others: list[str], hold: Sequence[str] = ()) -> dict:
    """Split the table by the first other axis, at some of its values; fix the remaining axes."""
    split, held = others[:1], [*others[1:], *hold]
    most = MOST_PANELS if split and not table[split[0]].dtype.is_integer() else SIDE_BY_SIDE
    tables = {"": table}
    if split:
        tables = {
            value_of(split[0], value): table.filter(pl.col(split[0]) == value)
            for value in evenly_spaced(values(table, split[0]), most)
        }
    found = {}
    for title, rows in tables.items():
        at, kept = _held(rows, held)
        found[_join(title, at)] = kept
    return found


def _held(table: pl.DataFrame, fields: list[str]) -> tuple[str, pl.DataFrame]:
    """Return the points at one combination of these fields, and that combination as text.

    It is the middle one of the combinations that have most points.
    """
    if not fields:
        return "", table
    sizes = table.group_by(fields).agg(points=pl.col("point").n_unique()).sort(fields)
    fullest = sizes.filter(pl.col("points") == pl.col("points").max())
    chosen = fullest.select(fields).row(fullest.height // 2, named=True)
    text = ", ".join(value_of(field, value) for field, value in chosen.items())
    return text, table.filter(*(pl.col(field) == value for field, value in chosen.items()))


def _join(*titles: str) -> str:
    return ", ".join(title for title in titles if title)


def _varying_groups(table: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the groups whose share gets a heatmap, by the name of the chart.

    These are the groups of the vocabulary, and the group that varies most of the others. Groups of
    plain layers are left out next to the vocabulary, since their share is its complement.
    """
    ends = tuple(group for group in VOCABULARY if group in table["group"])
    ranges = (
        table.filter(~pl.col("group").is_in([*ends, *(PLAIN_LAYER if ends else ())]))
        .group_by("group").agg(width=pl.col("share").max() - pl.col("share").min())
        .sort("width", "group", descending=True)
    )  # fmt: skip
    found = {"vocabulary": ends} if ends else {}
    if not ranges.is_empty() and ranges["width"][0] > 0.1:
        varies = ranges["group"][0]
        found[varies.replace(" ", "-")] = (varies,)
    return found
