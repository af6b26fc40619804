"""How parts make a model: each family is one class, found by its presence in this folder."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache

from modelbudget.architecture.base import Architecture


class Families(Mapping[str, type[Architecture]]):
    """Families by name. A new file here needs no registration; a base has an underscore.

    A family whose file has its name is imported alone, since imports of all take longer than a
    prediction.
    """

    def __init__(self):
        self._files = [info.name for info in pkgutil.iter_modules(__path__)]

    def __getitem__(self, name: str) -> type[Architecture]:
        file = name.replace("-", "_")
        if file in self._files and name in (in_file := _in_file(file)):
            return in_file[name]
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, type[Architecture]]:
        return {name: family for file in self._files for name, family in _in_file(file).items()}


@cache
def _in_file(file: str) -> dict[str, type[Architecture]]:
    module = importlib.import_module(f"{__name__}.{file}")
    return {
        value.name(): value  # pyrefly: ignore[missing-attribute]
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and name[0] != "_"
    }


@cache
def families() -> Families:
    """Return every family by name."""
    return Families()
