"""Comparison of prediction and measurement, component by component."""

from collections.abc import Sequence

import polars as pl

from modelbudget.measure.table import NO_ROOM
from modelbudget.sweep.sweep_file import LAID_OUT

KEYS = ["architecture", "run", "component", "quantity"]
TOLERANCE = {"resident_bytes": 0.01, "peak_requested_bytes": 0.001}
"""Largest relative difference that agrees. The operating system counts pages, and an allocator
counts a few bytes in addition to the tensors. All other quantities must be equal.
"""
NOT_JUDGED = ("resident_peak_bytes", *sorted(LAID_OUT))
"""Quantities shown for information; their prediction covers only part of them. For the memory of a
process it covers the tensors only; the simulated allocator leaves out the workspaces of kernels.
"""
OF_FAILURE: dict[str, type[pl.DataType]] = dict.fromkeys(
    ("architecture", "run", "quantity", "failure"), pl.String
)


def compare(
    points: pl.DataFrame,
    predicted: pl.DataFrame,
    measured: pl.DataFrame,
    axes: list[str],
    failures: Sequence[dict[str, str]] = (),
) -> pl.DataFrame:
    """Return one row for each point × component × quantity that is predicted or measured.

    `failures` lists what could not be measured: architecture, run, quantity and, as `failure`, the
    reason.

    Columns: point, label, the swept fields, component, quantity, each, instances, predicted,
    measured, difference (measured − predicted; a missing side counts as 0), percent (of
    predicted), agrees, method, shared_with, formula, failure.

    A component that only one side has does not agree. Without a formula (`formula` is false),
    prediction, difference and agreement are null; with a `failure`, measurement, difference and
    agreement are; for `NOT_JUDGED` quantities, agreement is. The result of the simulated allocator
    is in the column `predicted`, without a measurement if no device was measured.
    """
    without = predicted.filter(
        pl.col("component").is_null(), ~pl.col("quantity").is_in(LAID_OUT)
    ).select("architecture", "run", "quantity", formula=False)
    predicted = predicted.filter(pl.col("component").is_not_null())
    both = predicted.join(measured, on=KEYS, how="full", coalesce=True)
    both = both.with_columns(pl.coalesce("predicted", "laid_out"))
    missing_on_one_side = pl.col("predicted").is_null() ^ pl.col("measured").is_null()
    difference = pl.col("measured").fill_null(0) - pl.col("predicted").fill_null(0)
    # A tensor owned by another component is measured as 0, and formulas omit zeros.
    owned_elsewhere = pl.col("predicted").is_null() & (pl.col("measured") == 0)
    both = both.with_columns(
        pl.when(owned_elsewhere).then(0).otherwise(pl.col("predicted")).alias("predicted"),
        difference=difference,
        agrees=(difference.abs() <= _allowed()) & (~missing_on_one_side | owned_elsewhere),
    )
    of = ["architecture", "run", "quantity"]
    # A model with points in two shards may have failed in both or in only one.
    failed = pl.DataFrame(failures, OF_FAILURE, orient="row").unique(of, keep="first")
    failed = failed.join(measured, on=of, how="anti")
    both = (
        both.join(failed, on=of, how="full", coalesce=True)
        .join(without, on=of, how="left")
        .with_columns(pl.col("formula").fill_null(True))
        .with_columns(pl.when("formula").then("predicted"))
        .with_columns(
            pl.when(_has_both_sides()).then("difference"), pl.when(is_compared()).then("agrees")
        )
        .with_columns(percent=_percent())
    )
    method = measured.select("architecture", "run", "method").unique()
    both = both.drop("method").join(method, on=["architecture", "run"], how="left")
    return (
        points.select("point", "label", "architecture", "run", *axes)
        .join(both, on=["architecture", "run"], how="left")
        .drop("architecture", "run")
        .select(
            "point", "label", *axes, "component", "quantity", "each", "instances",
            "predicted", "measured", "difference", "percent", "agrees", "method", "shared_with",
            "formula", "failure",
        )
        .sort("point", "component", "quantity")
    )  # fmt: skip


def _allowed() -> pl.Expr:
    """Return the largest difference that agrees."""
    share = pl.col("quantity").replace_strict(TOLERANCE, default=0.0, return_dtype=pl.Float64)
    return share * pl.col("predicted").fill_null(0)


def _percent() -> pl.Expr:
    share = pl.col("difference") / pl.col("predicted")
    return pl.when(pl.col("predicted") > 0).then(100 * share)


def is_near() -> pl.Expr:
    """Whether a row agrees without being equal."""
    return pl.col("agrees") & (pl.col("difference") != 0)


def is_failed() -> pl.Expr:
    """Whether the measurement of a row failed; a lack of memory is not a failure."""
    return pl.col("failure").is_not_null() & ~_found_no_room()


def is_roomless() -> pl.Expr:
    """Whether a row was not measured because there was too little memory."""
    return pl.col("formula") & _found_no_room()


def _found_no_room() -> pl.Expr:
    return pl.col("failure").str.starts_with(NO_ROOM).fill_null(False)


def is_compared() -> pl.Expr:
    """Whether a row has a prediction and a measurement that must agree."""
    return _has_both_sides() & ~pl.col("quantity").is_in(NOT_JUDGED)


def _has_both_sides() -> pl.Expr:
    is_alone = pl.col("quantity").is_in(LAID_OUT) & pl.col("measured").is_null()
    return pl.col("formula") & pl.col("failure").is_null() & ~is_alone


def verdict(comparison: pl.DataFrame) -> dict[str, int]:
    """Count the points, the comparisons, and those that agree, are near or failed."""
    compared = comparison.filter(is_compared())
    return {
        "points": comparison["point"].n_unique(),
        "compared": compared.height,
        "agreed": int(compared["agrees"].sum()),
        "near": compared.filter(is_near()).height,
        "points_without_formula": comparison.filter(~pl.col("formula"))["point"].n_unique(),
        "points_failed": comparison.filter(is_failed())["point"].n_unique(),
    }
