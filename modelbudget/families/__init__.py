"""How parts make a model: each family is one class, found by its presence in this folder."""

import importlib
import pkgutil
from functools import cache

from modelbudget.architecture.base import Architecture


@cache
def families() -> dict[str, type[Architecture]]:
    """Every family by name. A new file here needs no registration; a base has an underscore."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and not name.startswith("_"):
                found[value.name()] = value
    return found
