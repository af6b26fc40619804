"""Sample of swept models whose module trees go into the report."""

from typing import TypeVar

from modelbudget.report.charts.grouped_values import evenly_spaced, share_room

Model = TypeVar("Model")
MOST_TREES = 1_500
"""Most trees of all sweeps together."""
LARGE, FEW = 500, 240
"""A sweep with more than LARGE different models has FEW of them in the sample."""


def sampled(models: dict[str, dict[str, Model]]) -> dict[str, Model]:
    """Return a sample of the models of all sweeps, which are given by sweep and digest.

    The models of a sweep are evenly spaced if there are too many of the sweep or in total.
    """
    wanted = {name: len(f) if len(f) <= LARGE else FEW for name, f in models.items()}
    room = share_room(wanted, MOST_TREES)
    return {
        digest: by_digest[digest]
        for name, by_digest in models.items()
        for digest in evenly_spaced(list(by_digest), max(2, room[name]))
    }
