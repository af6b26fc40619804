"""Where the two witnesses meet: predicted beside measured, component by component."""

from collections.abc import Sequence

import polars as pl

from modelbudget.measure.table import NO_ROOM
from modelbudget.sweep.sweep_file import LAID_OUT

KEYS = ["architecture", "run", "component", "quantity"]
TOLERANCE = {"resident_bytes": 0.01, "peak_requested_bytes": 0.001}
"""What the system tells counts pages, and what an allocator tells counts a few bytes beside the
tensors: they agree within a share of the prediction. All other quantities must be equal.
"""
NOT_JUDGED = ("resident_peak_bytes", *sorted(LAID_OUT))
"""Shown beside a prediction of something less: of the memory that a process takes while it
computes, the formula knows the tensors alone; and what an allocator's rules make of a trace knows
none of the scratch that kernels take.
"""
OF_FAILURE = dict.fromkeys(("architecture", "run", "quantity", "failure"), pl.String)


def compare(
    points: pl.DataFrame,
    predicted: pl.DataFrame,
    measured: pl.DataFrame,
    axes: list[str],
    failures: Sequence[dict[str, str]] = (),
) -> pl.DataFrame:
    """One row for each point × component × quantity that either witness knows.

    `failures` are what could not be measured: architecture, run, quantity, and the reason as
    `failure`.

    Columns: point, label, the swept fields, component, quantity, each, instances, predicted,
    measured, difference (measured − predicted; a missing side counts as 0), percent (of
    predicted), agrees, method, shared_with, formula, failure. A component that only one side has
    does not agree. Where there is no formula (`formula` is false), there is neither prediction,
    difference nor agreement; where there is a `failure`, neither measurement, difference nor
    agreement; what is not judged has no agreement. What an allocator's rules make of a trace stands
    where a prediction does, alone where no device was asked.
    """
    without = predicted.filter(
        pl.col("component").is_null(), ~pl.col("quantity").is_in(LAID_OUT)
    ).select("architecture", "run", "quantity", formula=False)
    predicted = predicted.filter(pl.col("component").is_not_null())
    both = predicted.join(measured, on=KEYS, how="full", coalesce=True)
    both = both.with_columns(pl.coalesce("predicted", "laid_out"))
    missing_on_one_side = pl.col("predicted").is_null() ^ pl.col("measured").is_null()
    difference = pl.col("measured").fill_null(0) - pl.col("predicted").fill_null(0)
    # A tensor that another component owns is measured as 0, and formulas leave zeros out.
    owned_elsewhere = pl.col("predicted").is_null() & (pl.col("measured") == 0)
    both = both.with_columns(
        pl.when(owned_elsewhere).then(0).otherwise(pl.col("predicted")).alias("predicted"),
        difference=difference,
        agrees=(difference.abs() <= _allowed()) & (~missing_on_one_side | owned_elsewhere),
    )
    of = ["architecture", "run", "quantity"]
    # A model that stands at points of two shards may have failed in both, or in one alone.
    failed = pl.DataFrame(failures, OF_FAILURE, orient="row").unique(of, keep="first")
    failed = failed.join(measured, on=of, how="anti")
    both = (
        both.join(failed, on=of, how="full", coalesce=True)
        .join(without, on=of, how="left")
        .with_columns(pl.col("formula").fill_null(True))
        .with_columns(pl.when("formula").then("predicted"))
        .with_columns(
            pl.when(_is_heard()).then("difference"), pl.when(is_compared()).then("agrees")
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
    """How far the measurement may be from the prediction."""
    share = pl.col("quantity").replace_strict(TOLERANCE, default=0.0, return_dtype=pl.Float64)
    return share * pl.col("predicted").fill_null(0)


def _percent() -> pl.Expr:
    share = pl.col("difference") / pl.col("predicted")
    return pl.when(pl.col("predicted") > 0).then(100 * share)


def is_near() -> pl.Expr:
    """Of a row: whether it agrees without being equal."""
    return pl.col("agrees") & (pl.col("difference") != 0)


def is_failed() -> pl.Expr:
    """Of a row: whether its measurement failed; what only found no room did not."""
    return pl.col("failure").is_not_null() & ~_found_no_room()


def is_roomless() -> pl.Expr:
    """Of a row: whether its prediction stands alone, since there was no room to measure."""
    return pl.col("formula") & _found_no_room()


def _found_no_room() -> pl.Expr:
    return pl.col("failure").str.starts_with(NO_ROOM).fill_null(False)


def is_compared() -> pl.Expr:
    """Of a row: whether both witnesses were heard, and must agree."""
    return _is_heard() & ~pl.col("quantity").is_in(NOT_JUDGED)


def _is_heard() -> pl.Expr:
    is_alone = pl.col("quantity").is_in(LAID_OUT) & pl.col("measured").is_null()
    return pl.col("formula") & pl.col("failure").is_null() & ~is_alone


def verdict(comparison: pl.DataFrame) -> dict[str, int]:
    """How many components of how many that have a formula agree, over how many points."""
    compared = comparison.filter(is_compared())
    return {
        "points": comparison["point"].n_unique(),
        "compared": compared.height,
        "agreed": int(compared["agrees"].sum()),
        "near": compared.filter(is_near()).height,
        "points_without_formula": comparison.filter(~pl.col("formula"))["point"].n_unique(),
        "points_failed": comparison.filter(is_failed())["point"].n_unique(),
    }
