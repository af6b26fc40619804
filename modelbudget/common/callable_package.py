"""Folders of the library that can be called: `modelbudget.measure(module)`.

The function and the folder have the same name, and Python binds a folder to its name in the package
when a file in it is imported.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Let a call of `package` call `function`, given as module:name and imported by the call."""

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            module, name = function.split(":")
            return getattr(importlib.import_module(module), name)(*args, **kwargs)

    sys.modules[package].__class__ = Callable
