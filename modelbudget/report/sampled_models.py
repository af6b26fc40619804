"""Sample of swept models whose module trees go into the report."""

from modelbudget.architecture.base import Architecture
from modelbudget.report.charts.grouped_values import evenly_spaced, share_room

MOST_TREES = 1_500
"""Most trees of all sweeps together."""
LARGE, FEW = 500, 240
"""A sweep with more than LARGE different models has FEW of them in the sample."""


def sampled(swept: dict[str, list[Architecture]]) -> dict[str, Architecture]:
    """Return a sample of the models of all sweeps, by digest.

    The models of a sweep are evenly spaced if there are too many of the sweep or in total.
    """
    distinct = {
        name: {one.digest(): one for one in architectures} for name, architectures in swept.items()
    }
    wanted = {name: len(f) if len(f) <= LARGE else FEW for name, f in distinct.items()}
    room = share_room(wanted, MOST_TREES)
    return {
        digest: found[digest]
        for name, found in distinct.items()
        for digest in evenly_spaced(list(found), max(2, room[name]))
    }
