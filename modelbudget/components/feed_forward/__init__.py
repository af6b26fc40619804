"""The second part of a layer: one feed-forward part a file, named as in the pattern `mlps:`."""

from functools import cache

from modelbudget.common.discover import Modules
from modelbudget.components.contract import Part


@cache
def feed_forward() -> dict[str, Part]:
    """Every feed-forward part by its name."""
    return Modules(__path__, __name__)
