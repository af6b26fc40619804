"""Measurements as a tidy table."""

from __future__ import annotations

from collections.abc import Sequence
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
"""Beginning of the reason for a lack of memory, which is not a failure."""


def is_failure(reason: str) -> bool:
    """Whether a measurement failed, as opposed to being omitted for lack of memory."""
    return not reason.startswith(NO_ROOM)


def measured_table(results: list[Measured], quantities: Sequence[str]) -> pl.DataFrame:
    """Return a row for each measured or simulated architecture × run × component × quantity."""
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
    """Return the reason for each architecture × run × quantity that could not be measured."""
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
