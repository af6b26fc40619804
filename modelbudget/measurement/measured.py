"""What was measured of one model in one run. Imports no torch: readers of tables need none."""

from typing import NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.sweeps.not_with_quantised_weights import REFUSED

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
