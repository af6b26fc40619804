"""Mixers: one file for each name in the pattern `mixers:`, each with `make(a)`."""

from functools import cache
from types import ModuleType

from modelbudget.common.discover import Modules


@cache
def mixers() -> dict[str, ModuleType]:
    """Every mixer's file by its name."""
    return Modules(__path__, __name__)
