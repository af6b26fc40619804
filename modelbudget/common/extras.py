"""Packages that only some uses need: the optional dependencies of pyproject.toml."""

from importlib.util import find_spec

from modelbudget.common.errors import InputError


def needed(use: str, extra: str, *packages: str) -> None:
    """Raise InputError with what to install if a package of an extra is not there."""
    for package in packages:
        if find_spec(package) is None:
            install = f"pip install 'modelbudget[{extra}]'"
            raise InputError([f"{package}: not installed; needed for {use}: {install}"])
