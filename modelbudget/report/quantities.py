"""For a telling point of a sweep: each quantity by component, with its formula and its ledger."""

import polars as pl
from markupsafe import Markup, escape

from modelbudget.architecture.terms import is_peak
from modelbudget.compare.comparison import NOT_JUDGED
from modelbudget.report import formulas, tables
from modelbudget.report.charts.format import UNITS, count
from modelbudget.report.results import SweepResult
from modelbudget.sweep.sweep_file import LAID_OUT, OF_RUN

TELLING = ("parameters", "activation_bytes", "cache_bytes", "peak_requested_bytes")
"""What makes a point the largest of its sweep: the first of these that was measured."""
HOW_PEAKS_ARE_MADE = (
    "The formula follows the operations in their order, adds what each allocates, takes away what "
    "is freed after it, and keeps the largest sum; written out it is pages long. The first step of "
    "training makes the optimizer's states, the second finds them in memory. Bold: what sets the "
    "peak."
)
FOLLOWED = ("peak_training_bytes", "peak_inference_bytes", "peak_requested_bytes")
ALLOCATED = (
    "Blocks of the caching allocator: multiples of 512 bytes, and large ones may keep up to 1 MiB "
    "too much. Predicted: the tensors of the trace, laid out by its rules."
)
RESERVED = "Segments that it has asked of the device; what is freed stays reserved for later."
UNCOUNTED = "No counter has a formula for these operations, so they are listed by name."


def largest(sweep: SweepResult) -> pl.DataFrame:
    """The points with the total that tells the largest from the others, as `total`."""
    measured = sweep.comparison.drop_nulls("measured")
    there = set(measured["quantity"].unique())
    quantity = next((one for one in TELLING if one in there), "")
    return (
        measured.filter(pl.col("quantity") == quantity)
        .group_by("point").agg(total=pl.col("measured").sum())
        .join(sweep.points, on="point").sort("point")
    )  # fmt: skip


def ledgers(sweep: SweepResult, point: dict) -> list[dict]:
    """One for each quantity of the run, and for the bytes of parameters beside them."""
    asked = sweep.summary["measure"]["quantities"]
    if not OF_RUN & set(asked):
        return []
    said = pl.col("measured").is_not_null() | pl.col("quantity").is_in(LAID_OUT)
    comparison = sweep.of_point(point).filter(said)
    return [
        _ledger(quantity, point, comparison.filter(pl.col("quantity") == quantity))
        for quantity in asked
        if quantity in OF_RUN | {"parameter_bytes"}
        and not comparison.filter(quantity=quantity).is_empty()
    ]


def _ledger(quantity: str, point: dict, comparison: pl.DataFrame) -> dict:
    told = pl.coalesce("measured", "predicted")
    values = comparison.select(told).to_series().to_list()
    notes = dict.fromkeys(FOLLOWED, HOW_PEAKS_ARE_MADE) | {
        "unsupported_ops": UNCOUNTED,
        "peak_allocated_bytes": ALLOCATED,
        "peak_reserved_bytes": RESERVED,
    }
    has_formula = comparison["formula"].all()
    agree = int(comparison["agrees"].fill_null(False).sum())
    mark, verdict = "none", "no formula"
    if quantity in NOT_JUDGED:
        verdict = "not judged" if comparison["measured"].count() else "predicted"
    elif has_formula:
        mark = "agrees" if agree == comparison.height else "disagrees"
        verdict = f"{agree} of {comparison.height} agree"
    return {
        "summary": f"{count(max(values) if is_peak(quantity) else sum(values))} {UNITS[quantity]}",
        "mark": mark,
        "verdict": verdict,
        "note": notes.get(quantity),
        "table": _table(quantity, point, comparison, has_formula),
    }


def _table(quantity: str, point: dict, comparison: pl.DataFrame, has_formula: bool) -> Markup:
    if is_peak(quantity):
        first, rows = "phase", _phases(comparison)
    elif quantity == "unsupported_ops":
        first, rows = "operation", _operations(comparison)
    else:
        first, rows = "component", formulas.component_rows(point, comparison, quantity)
        rows = [*rows, formulas.whole("all", rows)]
    written = has_formula and first == "component"
    columns = {"component": first} | ({"formula": "formula"} if written else {})
    columns |= {"predicted": "predicted"} if has_formula else {}
    columns |= {"counted": "measured"} | ({"difference": "difference"} if has_formula else {})
    return tables.table(
        [{title: row[name] for name, title in columns.items()} for row in rows],
        UNITS[quantity],
        numbers=("predicted", "measured", "difference"),
        html=(first, *(["formula"] if written else [])),
        red=[not row["agrees"] for row in rows],
        whole=[row["whole"] for row in rows],
    )


def _phases(comparison: pl.DataFrame) -> list[dict]:
    """`second.forward_backward` as words; the largest is what sets the peak."""
    comparison = comparison.with_columns(told=pl.coalesce("measured", "predicted"))
    peak = comparison["told"].max()
    return [
        _line(row, row["component"].replace(".", " step: ").replace("_", " and "))
        | {"whole": row["told"] == peak}
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
        "counted": row["measured"],
        "difference": row["difference"],
        "agrees": bool(row["agrees"]) or not row["formula"] or row["quantity"] in LAID_OUT,
    }
