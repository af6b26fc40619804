"""Bytes on each of the devices that share a model."""

from collections import Counter
from math import prod

import altair as alt
import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.common.number_format import count, si_bytes
from modelbudget.components.groups import group_of
from modelbudget.report.charts import theme
from modelbudget.report.charts.bar_chart import stacked_bars
from modelbudget.report.charts.chart_tables import SweepTables, named_ends
from modelbudget.report.charts.peak import Values, of_points

SHARED = [f"{of}_parallel" for of in ("data", "tensor", "context", "expert", "pipeline")]
UNITS_OF_STEP = {"sequence": ("sequence", "sequences"), "batch": ("batch", "batches")}
TITLE = "Memory of one device at its peak"
TEMPORARY = (
    "Temporary: results of operations that are not saved, and gradients until they are added up "
    "or sent."
)


def at_peak(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × part of what is live at its peak, as measured.

    Columns as those of `peak_parts`, of one phase without a name.
    """
    return of_points(comparison, {"bytes_at_peak"}, _parts_of)


def _parts_of(values: Values) -> dict[str, Counter[str]]:
    parts = Counter[str]()
    for bytes_of, n_bytes in values["bytes_at_peak"].items():
        # The kind of bytes, after whose name may follow the component.
        name, _, component = bytes_of.partition(".")
        is_head = component and group_of(component) == "head"
        parts["logits and loss" if is_head else name.replace("_", " ")] += n_bytes
    return {"": parts}


def near(devices: list[Accelerator], peaks: pl.Series) -> list[Accelerator]:
    """Return the accelerators with less memory than the largest peak, and the next larger one.

    That one only if it has less than twice as much: its line would leave the bars no room. Devices
    are sorted.
    """
    most = max(peaks)
    larger = [device for device in devices if most < device.bytes < 2 * most]
    return [*(device for device in devices if device.bytes <= most), *larger[:1]]


def by_layout(tables: SweepTables) -> dict[str, theme.Layers]:
    """Return charts of the bytes of one device at its peak.

    Of points that are listed one by one, or of a grid of devices. One for each base, if each has
    several points. None if no point is of several devices, or if something is not measured.
    """
    comparison, devices = tables.comparison, tables.devices
    shared = [name for name in SHARED if name in comparison.columns]
    is_shared = shared and comparison.select((pl.max_horizontal(shared) > 1).any()).item()
    has_bars = tables.is_list or (tables.is_of_devices and tables.has_bars)
    parts = at_peak(comparison) if is_shared and has_bars else pl.DataFrame()
    if parts.is_empty():
        return {}
    parts = parts.join(_steps(comparison), on="point", maintain_order="left")
    fewest = parts.select(pl.n_unique("point").over("base").min()).item()
    if parts["base"][0] is None or fewest == 1:
        return {"by-layout": _bars(parts, devices, _by_step(parts))}
    return {
        f"by-layout-{base}": _bars(of_base, devices, _by_step(of_base))
        for (base,), of_base in parts.group_by("base", maintain_order=True)
    }


def _steps(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return the sequences in a step of each point, what its other stages share, and its base."""
    fields = comparison.columns[2 : comparison.columns.index("component")]
    points = comparison.unique("point", maintain_order=True)
    sizes = [name for name in ("batch", "data_parallel") if name in fields]
    names = [name for name in fields if name != "pipeline_rank"]
    rows = points.iter_rows(named=True)
    return points.select(
        "point",
        sequences=pl.Series([prod(row[name] or 1 for name in sizes) for row in rows]),
        unit=pl.lit("sequence" if "batch" in fields else "batch"),
        layout=pl.concat_str(*names, separator=" ", ignore_nulls=True),
        base="base" if "base" in fields else None,
    )


def _bars(table: pl.DataFrame, devices: list[Accelerator], finding: str) -> theme.Layers:
    """Draw the parts of the peak of each point, and the memory of the devices `near` them."""
    named = [
        {"bytes": device.bytes, "device": f"{device.name} · {si_bytes(device.bytes)}"}
        for device in near(devices, table["peak"])
    ]
    text = {"y": alt.value(-5), "text": "device:N"}
    capacity = theme.thresholds(pl.DataFrame(named), {"x": "bytes:Q"}, text, angle=270, fontSize=11)
    return stacked_bars(
        table.with_columns(total="peak"), "bytes_at_peak", TITLE, f"{finding} {TEMPORARY}",
        marks=capacity if named else (),
    )  # fmt: skip


def _by_step(parts: pl.DataFrame) -> str:
    """Compare the layouts with the same sequences in a step; of stages the one that needs most."""
    models = parts.unique("point", keep="first", maintain_order=True)
    worst = models.sort("peak", descending=True).unique("layout", keep="first", maintain_order=True)
    in_order, texts = worst.sort("sequences", descending=True), []
    for (n,), of in in_order.group_by("sequences", maintain_order=True):
        step, peaks = UNITS_OF_STEP[models["unit"][0]][n > 1], named_ends(of, "peak", si_bytes)
        texts.append(f"A step of {count(n)} {step} needs {peaks} on one device.")
    return " ".join(texts)
