"""Summary of a sweep's comparison: one line for each quantity, over all points."""

import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.compare.class_verdict import judged
from modelbudget.compare.comparison import SIMULATED, value
from modelbudget.report import tables
from modelbudget.report.charts.format import count
from modelbudget.report.page_results import SweepResult

OF_CLASS = ("with classes", "agree with them")
EXTREMES = ("smallest point", "largest point")


def numbers_section(sweep: SweepResult, table: dict) -> dict:
    """Return the summary and its size; `table` is the part of the comparison in the page."""
    points, n_shown = sweep.comparison["point"].n_unique(), len(table["points"]["point"])
    return {
        "rows": count(sweep.comparison.height),
        "held": None if n_shown == points else f"{count(n_shown)} of {count(points)} points",
        "table": tables.table(
            _over_all_points(sweep.comparison),
            f"Each quantity over all points of {sweep.summary['title']}",
            numbers=("compared", "agree", *OF_CLASS, *EXTREMES),
        ),
    }


def _over_all_points(comparison: pl.DataFrame) -> list[dict]:
    """Return comparisons, agreements, and the smallest and largest total of a point by quantity.

    Where classes of `transformers` must have the values, also how many do.
    """
    of_class = (
        judged(comparison)
        .group_by("quantity")
        .agg(pl.len().alias(OF_CLASS[0]), pl.col("agrees").sum().alias(OF_CLASS[1]))
    )
    comparison = comparison.drop_nulls("quantity").with_columns(value=value())
    largest = pl.col("quantity").is_in([q for q in comparison["quantity"].unique() if is_peak(q)])
    of_points = comparison.group_by("quantity", "point").agg(
        compared=pl.col("agrees").count(),
        agree=pl.col("agrees").sum(),
        value=pl.when(largest.first())
        .then(pl.col("value").max())
        .when(pl.col("value").count() > 0)
        .then(pl.col("value").sum()),
        simulated=(pl.col("value").is_not_null() & pl.col("measured").is_null()).any(),
    )  # fmt: skip
    of_quantities = of_points.group_by("quantity").agg(
        pl.col("compared", "agree").sum(),
        pl.col("value").min().alias(EXTREMES[0]),
        pl.col("value").max().alias(EXTREMES[1]),
        pl.col("simulated").any(),
    )
    if not of_class.is_empty():
        of_quantities = of_quantities.join(of_class, on="quantity", how="left").select(
            "quantity", "compared", "agree", *OF_CLASS, *EXTREMES, "simulated"
        )
    name = pl.when("simulated").then(pl.col("quantity") + f" ({SIMULATED})").otherwise("quantity")
    return of_quantities.sort("quantity").with_columns(name).drop("simulated").to_dicts()
