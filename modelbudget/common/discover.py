"""Modules that are found by their presence in a folder."""

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any


def modules_in(path: Iterable[str], package: str) -> dict[str, Any]:
    """Every module of a package by the name of its file. A new file needs no registration."""
    names = [info.name for info in pkgutil.iter_modules(path)]
    return {name: importlib.import_module(f"{package}.{name}") for name in names}
