"""All layouts of some devices: bytes on each device against their number."""

import altair as alt
import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.predict.layouts import fewest, pareto
from modelbudget.report.charts import theme
from modelbudget.report.charts.format import count, si_bytes
from modelbudget.report.charts.peak import capacities
from modelbudget.report.charts.sweep_tables import Chart

MARGIN = 60
MOST = 1_500
"""Layouts that are drawn; of more, every second, third, … by bytes."""


def layouts_charts(table: pl.DataFrame, devices: list[Accelerator]) -> dict[str, theme.Layers]:
    """Return a chart for each base, with a point for each layout and the memory of devices."""
    charts = {}
    for (base,), of_base in table.drop_nulls("bytes").group_by("base", maintain_order=True):
        alone = table["base"].n_unique() == 1
        charts["layouts" if alone else f"layouts-{base}"] = _chart(of_base, devices)
    return charts


CHART = Chart(
    lambda tables: {
        name: chart
        for table in tables.layouts
        for name, chart in layouts_charts(table, tables.devices).items()
    },
    lambda tables: bool(tables.layouts),
)


def _chart(table: pl.DataFrame, devices: list[Accelerator]) -> theme.Layers:
    every = -(-table.height // MOST)
    drawn = table.sort("devices", "bytes").gather_every(every)
    front = pareto(table)
    sizes = table["devices"].unique().sort().to_list()
    ends = [*table["bytes"], *(device.bytes for device in devices)]
    domain = [min(ends) / 1.5, max(ends) * 1.5]
    x = alt.X("devices:N", sort=sizes, title="devices", axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "bytes:Q",
        title="bytes on the device that needs most",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=theme.vertical(labelExpr=theme.BYTES, **theme.ticks(int(domain[0]), int(domain[1]))),
    )
    settings = [name for name in table.columns if name not in ("base", "label", "bytes")]
    titles = {name: name.replace("_", " ") for name in settings}
    tooltip = theme.tooltip(titles, {"bytes": "bytes"})
    chart = alt.layer(
        *capacities(devices),
        alt.Chart(drawn).mark_point(color=theme.SOFT, filled=True, size=28, opacity=0.45)
        .encode(x=x, y=y, tooltip=tooltip),
        alt.Chart(front).mark_line(color=theme.INK).encode(x=x, y=y),
        alt.Chart(front).mark_point(color=theme.INK, filled=True, size=55, opacity=1)
        .encode(x=x, y=y, tooltip=tooltip),
    ).properties(width=theme.WIDTH - MARGIN, height=340)  # fmt: skip
    title = f"{table['label'][0]}: all layouts of {count(sizes[0])} to {count(sizes[-1])} devices"
    return theme.framed(chart, title, _finding(table, devices), MARGIN)


def _finding(table: pl.DataFrame, devices: list[Accelerator]) -> str:
    """State from how many devices on some layout fits each accelerator, and the least bytes."""
    least = pareto(table).row(-1, named=True)
    names: dict[tuple[str, int], list[str]] = {}
    for device in devices:
        for name, n in fewest(table, memory_margins(), device.bytes).items():
            names.setdefault((name, n), []).append(device.name)
    on = {"fits": "fits", "tight": "is tight on"}
    fits = "; ".join(
        f"{on[grade]} {', '.join(of)} from {count(n)} on" for (grade, n), of in names.items()
    )
    return (
        f"Of {count(table.height)} layouts, predicted by formula, the one that needs least has "
        f"{si_bytes(least['bytes'])} on each of {count(least['devices'])} devices. "
        + (f"Some layout {fits}. " if fits else "None fits any accelerator. ")
        + "The line joins the layouts of the least bytes."
    )
