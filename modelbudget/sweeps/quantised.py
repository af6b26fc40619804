"""Quantities that quantised weights leave undefined."""

from collections.abc import Set

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_QUANTISED
from modelbudget.sweeps.quantities import OF_CONVENTION

REFUSED = "quantised weights: "
"""Beginning of the reason for a quantity that is not defined, which is no failure."""


def refused(run: RunConfig, wanted: Set[str], has_bytes: bool) -> dict[str, str]:
    """Return the quantities that quantised weights leave undefined, each with the reason.

    `has_bytes`: whether the bytes of the weights are known.
    """
    if run.weights == "dtype":
        return {}
    given = f"{REFUSED}weights = {run.weights}"
    found = dict.fromkeys(
        wanted - {"parameters", *OF_QUANTISED, *OF_CONVENTION},
        f"{given}: this depends on adapters and kernels",
    )
    if "parameter_bytes" in wanted and not has_bytes:
        found["parameter_bytes"] = f"{given}: the bytes are not known"
    if "cache_bytes" in wanted and run.weights == "unknown":
        found["cache_bytes"] = f"{given}: the format of the cache is not known"
    return found
