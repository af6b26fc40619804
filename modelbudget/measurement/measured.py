"""What was measured of one model in one run. Imports no torch: readers of tables need none."""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.sweeps.not_with_quantised_weights import REFUSED
from modelbudget.sweeps.quantity_names import OF_PARAMETERS

NOT_INSTALLED = "no library: "
"""Beginning of the reason why no step of an optimizer is measured, which is no failure."""
NO_ROOM = "needs "
"""Beginning of the reason for a lack of memory, which is not a failure."""


ONLY_COUNTED = "adapter: "
"""Beginning of the reason for an adapter that nothing here computes, which is not a failure."""
NO_FAILURES = (NO_ROOM, REFUSED, NOT_INSTALLED, ONLY_COUNTED)


def is_failure(reason: str) -> bool:
    """Whether a measurement failed, as opposed to being omitted."""
    return not reason.startswith(NO_FAILURES)


Values = dict[str, dict[str, int]]
"""By quantity and component."""


class Measured(NamedTuple):
    """Measurements of one architecture and run, which are given by their digests.

    `method` is the device, or None if nothing was measured. `values` are by quantity and component.
    `shared_with` names the owner of a shared tensor for each other component. `missing` has the
    reason for each quantity that was not measured: a failure or a lack of memory (see
    `is_failure`). `simulated` has values that are computed from a trace, not measured.
    """

    architecture: str
    run: str
    method: str | None
    values: Values
    shared_with: dict[str, str]
    missing: dict[str, str]
    simulated: Values


def nothing(architecture: Architecture, run: RunConfig, missing: dict[str, str]) -> Measured:
    """Return the result of a model that could not be measured at all."""
    return Measured(architecture.digest(), run.digest(), None, {}, {}, missing, {})


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
