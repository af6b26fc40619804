"""Values of real modules as a tidy table: measured, or simulated from a trace."""

from collections.abc import Sequence

import polars as pl

from modelbudget.measurement.measured import Measured
from modelbudget.sweeps.quantity_names import OF_PARAMETERS

SCHEMA = {
    "architecture": pl.String, "run": pl.String, "component": pl.String, "quantity": pl.String,
    "value": pl.Int64, "shared_with": pl.String, "method": pl.String,
}  # fmt: skip
SIMULATED = "simulated"
"""Method of a value that is computed from a trace. The method of a measured one is its device."""
ORDER = ["architecture", "run", "component", "quantity", "method"]


def measured_table(results: list[Measured], quantities: Sequence[str]) -> pl.DataFrame:
    """Return a row for each architecture × run × component × quantity × method."""
    rows = [
        (
            result.architecture,
            result.run,
            component,
            quantity,
            value,
            result.shared_with.get(component) if quantity in OF_PARAMETERS else None,
            method,
        )
        for result in results
        for method, values in ((result.method, result.values), (SIMULATED, result.simulated))
        for quantity in quantities
        for component, value in values.get(quantity, {}).items()
    ]
    return pl.DataFrame(rows, SCHEMA, orient="row").sort(ORDER)


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
