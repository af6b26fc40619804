"""The largest batch, length or depth that fits on each accelerator: tables of `fit`."""

from collections.abc import Iterator

import polars as pl

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.common.number_format import count, si_bytes
from modelbudget.predict.fitting_layouts import fewest, grade
from modelbudget.predict.largest_that_fits import ENDLESS
from modelbudget.predict.shape_search import SHAPES
from modelbudget.report import tables
from modelbudget.report.charts.frontier import amount, answer
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import SweepResult
from modelbudget.sweeps.fields_in_words import in_words

FITS = PAGE["fits"]


def fits_section(sweep: SweepResult) -> dict | None:
    """Return one table for each purpose and field, with models as rows and devices as columns."""
    fit = sweep.fit
    if fit is None:
        return None
    fields = sweep.points.select("point", pl.col("^(length|n_layer)$"))
    fit = fit.join(fields, on="point")
    checked, wrong = fit["confirmed"].count(), fit.filter(~pl.col("confirmed")).height
    fit_tables = []
    for (purpose, field), cells in fit.group_by("purpose", "field", maintain_order=True):
        title, fields_of_point = FITS["fields"][field]
        devices = cells.select("device", "memory").unique(maintain_order=True).rows()
        fit_tables.append(
            {
                "title": f"{title} {FITS['purposes'][purpose]}",
                "fields": {n: head for n, head in fields_of_point.items() if n in cells.columns},
                "devices": [f"{name} {si_bytes(memory)}" for name, memory in devices],
                "models": [of.to_dicts() for _, of in cells.group_by("point", maintain_order=True)],
            }
        )
    return {
        "tables": fit_tables,
        "any": ENDLESS - 1,
        "checked": f"{count(checked - wrong)} of {count(checked)} traced values",
        "agrees": not wrong,
        "margins": memory_margins(),
    }


def layouts_section(table: pl.DataFrame | None, devices: list[Accelerator]) -> dict | None:
    """Return the table of the fewest devices for each base and accelerator, by grade."""
    if table is None:
        return None
    rows = [
        row
        for _, of_base in table.group_by("base", maintain_order=True)
        for device in devices
        for row in _rows(of_base.drop_nulls("bytes"), device)
    ]
    return {
        "table": tables.table(rows, "Fewest devices on which a layout fits, and the simplest", ()),
        "known": table["bytes"].count(),
        "unknown": table["bytes"].null_count(),
        "margins": memory_margins(),
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


MOST_ROWS = 12


def solve_section(frontier: pl.DataFrame | None, summary: dict) -> dict | None:
    """Return the answer in a sentence, and the tables of the proof and of the frontier."""
    if frontier is None:
        return None
    proof, best = summary["solved"], summary["solve"]["best"]
    counted = f"{count(proof['solutions'])} of {count(proof['shapes'])} shapes meet the bounds"
    return {
        "answer": f"{counted}. {answer(frontier, best)}" if len(best) > 1 else f"{counted}.",
        "proof": tables.table(_proof(proof, summary["points"]), "Shapes left"),
        "frontier": _frontier(frontier),
        "all": proof["kept"] == proof["solutions"],
        "kept": count(proof["kept"]),
    }


def _proof(proof: dict, points: int) -> list[dict]:
    """Return how many shapes are left after each step."""
    steps = [("in the grid", proof["shapes"]), ("allowed by the constraints", proof["allowed"])]
    for limit in proof["within"]:
        least, most = (amount(limit["name"], limit[end]) for end in ("least", "most"))
        ends = f"from {least} to {most}" if limit["least"] else f"at most {most}"
        unknown = f"; {count(limit['unknown'])} without a formula" if limit["unknown"] else ""
        steps.append((f"{limit['name']} {ends}{unknown}", limit["left"]))
    steps += [("on the frontier", proof["frontier"]), ("instantiated and compared", points)]
    return [{"step": step, "shapes": shapes} for step, shapes in steps]


def _frontier(frontier: pl.DataFrame) -> str:
    """Return the table of best shapes."""
    every = -(-frontier.height // MOST_ROWS)
    rows = frontier.gather_every(every).to_dicts()
    shown = [
        {"shape": f"shape {1 + i * every}"}
        | {name: _text(name, value) for name, value in row.items() if name != SHAPES}
        | {"equally good": row[SHAPES]}
        for i, row in enumerate(rows)
    ]
    more = f", every {every}th of {count(frontier.height)}" if every > 1 else ""
    return tables.table(shown, f"The best shapes{more}")


def _text(name: str, value) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return amount(name, value) if isinstance(value, int) else value
