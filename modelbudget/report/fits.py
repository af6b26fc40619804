"""What each accelerator holds of each model: tables of solved sizes."""

import polars as pl
from markupsafe import Markup

from modelbudget.predict.fit import ENDLESS
from modelbudget.report import tables
from modelbudget.report.charts.format import count, si_bytes
from modelbudget.report.results import SweepResult

MOST_MISSING = 20
NO_BREAK = "\N{NO-BREAK SPACE}"
PURPOSES = {
    "training": "at the worst moment of a training step",
    "use": "at the worst moment of reading a prompt and computing the next token",
    "memory": "with the parameters and what is remembered of the text",
}
BOUNDS = {"model": " its most", "formula": " or more", None: ""}
"""Said of a value at which not the memory ends, but what the model admits or the formula knows."""
FIELDS = {
    "batch": ("Largest batch", {"length": "length"}),
    "length": ("Longest sequence, alone in its batch", {}),
    "n_layer": ("Most layers of this width and batch", {"n_layer": "its n_layer"}),
}
"""What a table is called, and which of a point's own fields stand beside the answers."""


def fits_section(sweep: SweepResult) -> dict | None:
    """One table for each purpose and field, models by accelerators."""
    fit = sweep.fit
    if fit is None:
        return None
    own = sweep.points.select("point", pl.col("^(length|n_layer)$"))
    fit = fit.join(own, on="point")
    looked_at, wrong = fit["confirmed"].count(), fit.filter(~pl.col("confirmed")).height
    return {
        "tables": [
            _table(cells, purpose, field)
            for (purpose, field), cells in fit.group_by("purpose", "field", maintain_order=True)
        ],
        "checked": f"{count(looked_at - wrong)} of {count(looked_at)} that were looked at",
        "agrees": not wrong,
        "missing": _missing(fit),
    }


def _missing(fit: pl.DataFrame) -> Markup | None:
    """Cells without a formula or a measurement: by model and reason, which devices and fields."""
    cells = fit.filter(pl.col("failure").is_not_null())
    if cells.is_empty():
        return None
    rows = cells.group_by("point", "label", "purpose", "failure", maintain_order=True).agg(
        pl.col("field").unique(maintain_order=True).str.join(", "), pl.len()
    )
    return tables.table(
        [
            {"model": row["label"], "for": row["purpose"], "largest": row["field"]}
            | {"cells": row["len"], "reason": row["failure"]}
            for row in rows.head(MOST_MISSING).iter_rows(named=True)
        ],
        "What was not solved or not measured"
        + (f", the first {MOST_MISSING} of {count(rows.height)}" * (rows.height > MOST_MISSING)),
        numbers=("cells",),
    )


def _table(cells: pl.DataFrame, purpose: str, field: str) -> Markup:
    words, beside = FIELDS[field]
    devices = [
        f"{name} {si_bytes(memory).replace(' ', NO_BREAK)}"
        for name, memory in cells.select("device", "memory").unique(maintain_order=True).rows()
    ]
    rows = [
        {"model": model["label"][0]}
        | {title: model[name][0] for name, title in beside.items() if name in model}
        | dict(zip(devices, map(_cell, model.iter_rows(named=True)), strict=True))
        for _, model in cells.group_by("point", maintain_order=True)
    ]
    return tables.table(
        rows,
        f"{words} {PURPOSES[purpose]}",
        numbers=tuple(name for name in rows[0] if name != "model"),
        html=tuple(devices),
    )


def _cell(cell: dict) -> Markup:
    """The solved number, and what is to be said about it; where nothing fits, how many times the
    memory the least would take.
    """
    if cell["value"] is None:
        return Markup("<small>{}</small>").format(cell["failure"])
    if not cell["value"]:
        text = Markup("– <small>{} ×</small>").format(_times(cell))
    elif cell["value"] == ENDLESS - 1:
        text = Markup("<small>any</small>")
    else:
        text = Markup("{}{}").format(count(cell["value"]), BOUNDS[cell["bound"]])
    if cell["confirmed"] is False:
        return Markup('<span class="disagrees">{} not as measured</span>').format(text)
    return text if cell["confirmed"] else text + Markup("<small>*</small>")


def _times(cell: dict) -> str:
    return f"{cell['bytes_beyond'] / cell['memory']:,.1f}"
