"""The example point of a sweep: its largest one."""

import polars as pl

from modelbudget.report.page_results import SweepResult

SORTED_BY = ("parameters", "activation_bytes", "cache_bytes", "peak_requested_bytes")
"""The largest point of a sweep is by the first of these that was measured."""


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
