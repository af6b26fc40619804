"""Summary of a sweep's comparison: one line for each quantity, over all points."""

import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.report import tables
from modelbudget.report.charts.format import count
from modelbudget.report.results import SweepResult
from modelbudget.sweep.sweep_file import LAID_OUT


def numbers_section(sweep: SweepResult, table: dict) -> dict:
    """Return the summary and its size; `table` is the part of the comparison in the page."""
    points, held = sweep.comparison["point"].n_unique(), len(table["points"]["point"])
    return {
        "rows": count(sweep.comparison.height),
        "held": None if held == points else f"{count(held)} of {count(points)} points",
        "table": tables.table(
            [_line(*line) for line in _over_all_points(sweep.comparison)],
            f"Each quantity over all points of {sweep.summary['title']}",
            numbers=("compared", "agree", "smallest point", "largest point"),
        ),
    }


def _over_all_points(comparison: pl.DataFrame) -> list[tuple]:
    """Return quantity, comparisons, agreements, and the smallest and largest total of a point."""
    laid_out = pl.col("quantity").is_in(LAID_OUT)
    comparison = comparison.drop_nulls("quantity").with_columns(
        pl.when(laid_out).then(pl.coalesce("measured", "predicted")).otherwise("measured")
    )
    largest = pl.col("quantity").is_in([q for q in comparison["quantity"].unique() if is_peak(q)])
    of_points = comparison.group_by("quantity", "point").agg(
        compared=pl.col("agrees").count(),
        agree=pl.col("agrees").sum(),
        value=pl.when(largest.first())
        .then(pl.col("measured").max())
        .when(pl.col("measured").count() > 0)
        .then(pl.col("measured").sum()),
    )  # fmt: skip
    return (
        of_points.group_by("quantity")
        .agg(
            pl.col("compared", "agree").sum(),
            least=pl.col("value").min(),
            most=pl.col("value").max(),
        )
        .sort("quantity")
        .rows()
    )


def _line(quantity: str, compared: int, agree: int, least: int | None, most: int | None) -> dict:
    return {
        "quantity": quantity,
        "compared": compared,
        "agree": agree,
        "smallest point": least,
        "largest point": most,
    }
