"""Feed-forward parts: one file for each name in the pattern `mlps:`, each with `make(a)`."""

from functools import cache
from types import ModuleType

from modelbudget.common.discover import Modules


@cache
def feed_forward() -> dict[str, ModuleType]:
    """Every feed-forward part's file by its name."""
    return Modules(__path__, __name__)
