"""Why a quantity was not measured: a failure, or a known reason."""

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
