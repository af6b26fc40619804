"""For a telling point of a sweep: each quantity by component, with its formula and its ledger."""

import polars as pl
from markupsafe import Markup

from modelbudget.charts.words import UNITS, count
from modelbudget.report import formulas, tables
from modelbudget.report.results import SweepResult
from modelbudget.sweep import OF_INFERENCE, OF_TRAINING

TELLING = ("parameters", "saved_bytes", "cache_bytes")
"""What makes a point the largest of its sweep: the first of these that was measured."""
PEAKS = ("peak_training_bytes", "peak_inference_bytes")
HOW_PEAKS_ARE_MADE = (
    "The formula follows the operations in their order, adds what each allocates, takes away what "
    "is freed after it, and keeps the largest sum; written out it is pages long. Of a training "
    "step the second finds the optimizer's states in memory."
)
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
    if not (OF_TRAINING | OF_INFERENCE) & set(asked):
        return []
    comparison = sweep.of_point(point).filter(pl.col("measured").is_not_null())
    return [
        _ledger(quantity, point, comparison.filter(pl.col("quantity") == quantity))
        for quantity in asked
        if quantity != "parameters" and not comparison.filter(quantity=quantity).is_empty()
    ]


def _ledger(quantity: str, point: dict, comparison: pl.DataFrame) -> dict:
    has_formula = comparison["formula"].all()
    agree = int(comparison["agrees"].fill_null(False).sum())
    worst = max if quantity in PEAKS else sum
    total = worst(comparison["measured"].to_list())
    verdict = f"{agree} of {comparison.height} agree" if has_formula else "no formula"
    return {
        "summary": f"{count(total)} {UNITS[quantity]}",
        "verdict": verdict,
        "agrees": agree == comparison.height or not has_formula,
        "note": HOW_PEAKS_ARE_MADE
        if quantity in PEAKS
        else UNCOUNTED
        if quantity == "uncounted_calls"
        else None,
        "table": _table(quantity, point, comparison, has_formula),
    }


def _table(quantity: str, point: dict, comparison: pl.DataFrame, has_formula: bool) -> Markup:
    written = has_formula and quantity not in PEAKS
    rows = formulas.component_rows(point, comparison, quantity, written=written)
    if quantity not in PEAKS:
        rows.append(formulas.whole("all", rows))
    columns = {"component": "phase" if quantity in PEAKS else "component"}
    columns |= {"formula": "formula"} if written else {}
    columns |= {"predicted": "predicted"} if has_formula else {}
    columns |= {"counted": "measured"}
    columns |= {"difference": "difference"} if has_formula else {}
    return tables.table(
        [{title: row[name] for name, title in columns.items()} for row in rows],
        UNITS[quantity],
        numbers=("predicted", "measured", "difference"),
        html=tuple(name for name in columns.values() if name in ("component", "phase", "formula")),
        red=[not row["agrees"] for row in rows],
        whole=[row["whole"] for row in rows],
    )
