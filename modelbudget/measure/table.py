"""Measurements as a tidy table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from modelbudget.sweep import OF_PARAMETERS

if TYPE_CHECKING:
    from modelbudget.measure.pool import Measured

SCHEMA = {
    "architecture": pl.String,
    "run": pl.String,
    "component": pl.String,
    "quantity": pl.String,
    "measured": pl.Int64,
    "shared_with": pl.String,
    "method": pl.String,
}


def measured_table(results: list[Measured], quantities: list[str]) -> pl.DataFrame:
    """One row for each architecture × run × component × quantity that was measured."""
    rows = [
        (
            result.architecture,
            result.run,
            component,
            quantity,
            value,
            result.shared_with.get(component) if quantity in OF_PARAMETERS else None,
            result.method,
        )
        for result in results
        for quantity in quantities
        for component, value in result.values.get(quantity, {}).items()
    ]
    table = pl.DataFrame(rows, SCHEMA, orient="row")
    return table.sort("architecture", "run", "component", "quantity")


def failures(results: list[Measured]) -> list[dict[str, str]]:
    """What could not be measured, and why: one for each architecture × run × quantity."""
    return [
        {
            "architecture": result.architecture,
            "run": result.run,
            "quantity": quantity,
            "failure": reason,
        }
        for result in results
        for quantity, reason in result.missing.items()
    ]
