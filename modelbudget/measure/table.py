"""Measurements as a tidy table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from modelbudget.measure.pool import Measured

SCHEMA = {
    "architecture": pl.String,
    "component": pl.String,
    "quantity": pl.String,
    "measured": pl.Int64,
    "shared_with": pl.String,
    "method": pl.String,
}


def measured_table(results: list[Measured], quantities: list[str]) -> pl.DataFrame:
    """One row for each architecture × component × quantity."""
    rows = [
        (
            result.architecture,
            component,
            quantity,
            getattr(count, quantity),
            count.shared_with,
            result.method,
        )
        for result in results
        for component, count in result.counts.items()
        for quantity in quantities
    ]
    return pl.DataFrame(rows, SCHEMA, orient="row").sort("architecture", "component", "quantity")
