"""Measurements as a tidy table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from modelbudget.sweep.sweep_file import OF_PARAMETERS

if TYPE_CHECKING:
    from modelbudget.measure.one_model import Measured

SCHEMA = {
    "architecture": pl.String,
    "run": pl.String,
    "component": pl.String,
    "quantity": pl.String,
    "measured": pl.Int64,
    "shared_with": pl.String,
    "method": pl.String,
    "laid_out": pl.Int64,
}

NO_ROOM = "needs "
"""How a reason begins that is no failure: this machine has no memory for the measurement."""


def is_failure(reason: str) -> bool:
    """Whether a measurement failed, and was not left out for want of memory."""
    return not reason.startswith(NO_ROOM)


def measured_table(results: list[Measured], quantities: list[str]) -> pl.DataFrame:
    """One row for each architecture × run × component × quantity that was measured, or laid out."""
    rows = [
        (
            result.architecture,
            result.run,
            component,
            quantity,
            result.values.get(quantity, {}).get(component),
            result.shared_with.get(component) if quantity in OF_PARAMETERS else None,
            result.method,
            result.laid_out.get(quantity, {}).get(component),
        )
        for result in results
        for quantity in quantities
        for component in result.values.get(quantity) or result.laid_out.get(quantity, {})
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
