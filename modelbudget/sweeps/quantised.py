"""Quantities that quantised weights leave undefined: those of their training."""

from collections.abc import Set

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_QUANTISED
from modelbudget.sweeps.quantities import (
    OF_ALLOCATOR,
    OF_CONVENTION,
    OF_PROCESS,
    OF_TRAINING,
)

REFUSED = "quantised weights: "
"""Beginning of the reason for a quantity that is not defined, which is no failure."""


def refused(run: RunConfig, wanted: Set[str], has_bytes: bool) -> dict[str, str]:
    """Return the quantities that quantised weights leave undefined, each with the reason.

    `has_bytes`: whether the bytes of the weights are known.
    """
    if run.weights == "dtype":
        return {}
    given = f"{REFUSED}weights = {run.weights}"
    found = dict.fromkeys(wanted & OF_PROCESS, f"{given}: not measured on a real CPU")
    if run.adapter == "none":
        of_step = (OF_TRAINING | OF_ALLOCATOR) & wanted - {*OF_QUANTISED}
        found |= dict.fromkeys(of_step, f"{given} are frozen; allowed with adapter: lora")
    if run.weights == "unknown":
        others = wanted - {"parameters", *OF_QUANTISED, *OF_CONVENTION}
        found |= dict.fromkeys(others, f"{given}: the bytes are not known")
    if "parameter_bytes" in wanted and not has_bytes:
        found["parameter_bytes"] = f"{given}: the bytes are not known"
    if "cache_bytes" in wanted and run.weights == "unknown":
        found["cache_bytes"] = f"{given}: the format of the cache is not known"
    return found
