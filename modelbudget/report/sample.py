"""Which swept models are built once more to be looked into."""

from modelbudget.architecture.base import Architecture
from modelbudget.report.charts.budget import shared_out, spread

MOST_TREES = 1_500
"""Of all sweeps together."""
LARGE, FEW = 1_000, 240
"""Of a sweep of more different models than the first, only so many as the second."""


def chosen(swept: dict[str, list[Architecture]]) -> dict[str, Architecture]:
    """By their digests the models of all sweeps; evenly chosen of a large one, and where all sweeps
    together have too many.
    """
    distinct = {
        name: {one.digest(): one for one in architectures} for name, architectures in swept.items()
    }
    wanted = {name: len(f) if len(f) <= LARGE else FEW for name, f in distinct.items()}
    room = shared_out(wanted, MOST_TREES)
    return {
        digest: found[digest]
        for name, found in distinct.items()
        for digest in spread(list(found), max(2, room[name]))
    }
