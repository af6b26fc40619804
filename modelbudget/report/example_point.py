"""The example point of a sweep: a table for each quantity, by component, with formulas."""

import polars as pl
from markupsafe import Markup, escape

from modelbudget.architecture.terms import is_peak
from modelbudget.compare.comparison import FORMULA, SIMULATED, value
from modelbudget.report import formulas, tables
from modelbudget.report.charts.format import UNITS, count
from modelbudget.report.results import SweepResult
from modelbudget.sweeps.quantities import OF_RUN

SORTED_BY = ("parameters", "activation_bytes", "cache_bytes", "peak_requested_bytes")
"""The largest point of a sweep is by the first of these that was measured."""
PEAK_NOTE = (
    "The formula adds the bytes that each operation allocates, in order, subtracts those freed "
    "after it, and takes the maximum; it is too long to print. The first training step creates the "
    "optimizer state; the second has it in memory. Bold: the phase that sets the peak."
)
NOTES = dict.fromkeys(
    ("peak_training_bytes", "peak_inference_bytes", "peak_requested_bytes"), PEAK_NOTE
) | {
    "unsupported_ops": "The FLOP counter has no formula for these operations.",
    "peak_allocated_bytes": "Blocks of the caching allocator are multiples of 512 bytes; a large "
    "block may have up to 1 MiB of slack. Simulated: the allocator's rules applied to the tensors "
    "of a trace.",
    "peak_reserved_bytes": "Segments that the caching allocator reserves on the device; freed "
    "blocks stay reserved.",
}
"""Quantity → note below the title of its table."""


def largest(sweep: SweepResult) -> pl.DataFrame:
    """Return the points with the quantity that they are sorted by, as `total`."""
    measured = sweep.comparison.drop_nulls("measured")
    there = set(measured["quantity"].unique())
    quantity = next((one for one in SORTED_BY if one in there), "")
    return (
        measured.filter(pl.col("quantity") == quantity)
        .group_by("point").agg(total=pl.col("measured").sum())
        .join(sweep.points, on="point").sort("point")
    )  # fmt: skip


def ledgers(sweep: SweepResult, point: dict) -> list[dict]:
    """Return a table for each quantity that depends on run settings, and for parameter bytes."""
    quantities = sweep.summary["measure"]["quantities"]
    if not OF_RUN & set(quantities):
        return []
    comparison = sweep.of_point(point).filter(value().is_not_null())
    return [
        _ledger(quantity, point, comparison.filter(pl.col("quantity") == quantity))
        for quantity in quantities
        if quantity in OF_RUN | {"parameter_bytes"}
        and not comparison.filter(quantity=quantity).is_empty()
    ]


def _ledger(quantity: str, point: dict, comparison: pl.DataFrame) -> dict:
    values = comparison.select(value()).to_series().to_list()
    prediction = comparison["prediction"][0]
    agree = int(comparison["agrees"].fill_null(False).sum())
    mark, verdict = "none", "no formula"
    if prediction == SIMULATED:
        verdict = "no verdict" if comparison["measured"].count() else "simulated"
    elif prediction == FORMULA:
        mark = "agrees" if agree == comparison.height else "disagrees"
        verdict = f"{agree} of {comparison.height} agree"
    return {
        "summary": f"{count(max(values) if is_peak(quantity) else sum(values))} {UNITS[quantity]}",
        "mark": mark,
        "verdict": verdict,
        "note": NOTES.get(quantity),
        "table": _table(quantity, point, comparison),
    }


def _table(quantity: str, point: dict, comparison: pl.DataFrame) -> Markup:
    if is_peak(quantity):
        first, rows = "phase", _phases(comparison)
    elif quantity == "unsupported_ops":
        first, rows = "operation", _operations(comparison)
    else:
        first, rows = "component", formulas.component_rows(point, comparison, quantity)
        rows = [*rows, formulas.whole("all", rows)]
    prediction = comparison["prediction"][0]
    written = prediction == FORMULA and first == "component"
    heading = SIMULATED if prediction == SIMULATED else "predicted"
    columns = {"formula": "formula"} if written else {}
    columns |= {"predicted": heading, "measured": "measured", "difference": "difference"}
    if prediction is None:
        columns = {"measured": "measured"}
    return tables.table(
        [
            {first: row["component"]} | {shown: row[name] for name, shown in columns.items()}
            for row in rows
        ],
        UNITS[quantity],
        numbers=(heading, "measured", "difference"),
        html=(first, *(["formula"] if written else [])),
        red=[not row["agrees"] for row in rows],
        whole=[row["whole"] for row in rows],
    )


def _phases(comparison: pl.DataFrame) -> list[dict]:
    """Return one row for each phase, such as `second.forward_backward`; the largest is bold."""
    comparison = comparison.with_columns(value=value())
    peak = comparison["value"].max()
    return [
        _line(row, row["component"].replace(".", " step: ").replace("_", " and "))
        | {"whole": row["value"] == peak}
        for row in comparison.iter_rows(named=True)
    ]


def _operations(comparison: pl.DataFrame) -> list[dict]:
    rows = comparison.sort("measured", "component", descending=[True, False])
    return [
        _line(row, Markup("<code>{}</code>").format(row["component"])) | {"whole": False}
        for row in rows.iter_rows(named=True)
    ]


def _line(row: dict, name: str) -> dict:
    return {
        "component": escape(name),
        "predicted": row["predicted"],
        "measured": row["measured"],
        "difference": row["difference"],
        "agrees": row["agrees"] is not False,
    }
