"""Layouts of devices that fit on each accelerator: the table of a sweep with `layouts`."""

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.predict.layouts import smallest
from modelbudget.report import tables
from modelbudget.report.charts.format import count, in_words, si_bytes


def layouts_section(
    table: pl.DataFrame | None, devices: list[Accelerator], name: str
) -> dict | None:
    """Return the table of the smallest number of devices for each base and accelerator."""
    if table is None:
        return None
    rows = [
        _row(of_base.drop_nulls("bytes"), device)
        for _, of_base in table.group_by("base", maintain_order=True)
        for device in devices
    ]
    known = table["bytes"].count()
    return {
        "table": tables.table(rows, "Fewest devices on which a layout fits, and the simplest"),
        "text": f"{count(known)} layouts are predicted"
        + (f"; {count(table.height - known)} have no formula." if known < table.height else "."),
        "file": f"results/{name}/layouts.csv",
    }


def _row(layouts: pl.DataFrame, device: Accelerator) -> dict:
    fewest = smallest(layouts, device.bytes)
    label = {"model": layouts["label"].first(), "device": f"{device.name} {si_bytes(device.bytes)}"}
    if fewest is None:
        return label | {"devices": "none of these"}
    fitting = layouts.filter(pl.col("bytes") <= device.bytes)
    simplest = fitting.filter(pl.col("devices") == fewest).row(0, named=True)
    return label | {
        "devices": count(fewest),
        "layout": in_words(simplest),
        "recompute": simplest["recompute"],
        "bytes per device": si_bytes(simplest["bytes"]),
        "margin": si_bytes(device.bytes - simplest["bytes"]),
        "layouts that fit": f"{count(fitting.height)} of {count(layouts.height)}",
    }
