"""Modules that are found by their presence in a folder."""

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any, NoReturn


class Modules(dict[str, Any]):
    """The modules of a package by the names of their files. A new file needs no registration."""

    def __init__(self, path: Iterable[str], package: str):
        names = [info.name for info in pkgutil.iter_modules(path)]
        super().__init__({name: importlib.import_module(f"{package}.{name}") for name in names})
        self.package = package

    def __missing__(self, name: str) -> NoReturn:
        """Raise FileNotFoundError: a part has a program, and not yet a module, or the reverse."""
        raise FileNotFoundError(f"no file {self.package.replace('.', '/')}/{name}.py")
