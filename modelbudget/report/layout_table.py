"""Layouts of devices that fit on each accelerator: the table of a sweep with `layouts`."""

from collections.abc import Iterator

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.predict.layouts import fewest, grade
from modelbudget.report import tables
from modelbudget.report.charts.format import count, in_words, si_bytes
from modelbudget.report.fit_tables import margins


def layouts_section(
    table: pl.DataFrame | None, devices: list[Accelerator], name: str
) -> dict | None:
    """Return the table of the fewest devices for each base and accelerator, by grade."""
    if table is None:
        return None
    rows = [
        row
        for _, of_base in table.group_by("base", maintain_order=True)
        for device in devices
        for row in _rows(of_base.drop_nulls("bytes"), device)
    ]
    known = table["bytes"].count()
    return {
        "table": tables.table(rows, "Fewest devices on which a layout fits, and the simplest"),
        "text": f"{count(known)} layouts are predicted"
        + (f"; {count(table.height - known)} have no formula." if known < table.height else "."),
        "file": f"results/{name}/layouts.csv",
        "margins": margins(),
    }


def _rows(layouts: pl.DataFrame, device: Accelerator) -> Iterator[dict]:
    """Yield a row for the fewest devices with a layout that fits, and with one that is tight."""
    label = {"model": layouts["label"].first(), "device": f"{device.name} {si_bytes(device.bytes)}"}
    known = memory_margins()
    graded = layouts.with_columns(grade=grade(known, device.bytes))
    by_grade = fewest(layouts, known, device.bytes)
    if not by_grade:
        yield label | {"devices": "none of these"}
    for name, n in by_grade.items():
        of_grade = graded.filter(grade=name)
        simplest = of_grade.filter(devices=n).row(0, named=True)
        yield label | {
            "devices": count(n),
            "grade": name,
            "layout": in_words(simplest),
            "recompute": simplest["recompute"],
            "bytes per device": si_bytes(simplest["bytes"]),
            "margin": si_bytes(device.bytes - simplest["bytes"]),
            "layouts of this grade": f"{count(of_grade.height)} of {count(layouts.height)}",
        }
