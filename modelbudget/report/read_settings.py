"""Formulas evaluated once for all runs that differ in no setting which they read."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class _Noted:
    """Settings of a run, of which those that are read become attributes; `vars` reads all."""

    def __init__(self, settings: Mapping[str, Any]):
        self.settings, self.names = settings, []

    def __getattr__(self, name: str):
        if name not in self.settings:
            raise AttributeError(name)
        self.names.append(name)
        setattr(self, name, self.settings[name])
        return self.settings[name]

    @property
    def __dict__(self):
        self.names = list(self.settings)
        return self.settings


class OnceForReadSettings:
    """Results by a name, the settings that were read for them, and the values of these."""

    def __init__(self):
        self._results: dict[str, dict[tuple[str, ...], dict[tuple, Any]]] = {}

    def __call__(self, name: str, compute: Callable[[Any], Any], r: SimpleNamespace) -> Any:
        """Return compute(r), or a result of this name for which equal settings were read."""
        settings, results = vars(r), self._results.setdefault(name, {})
        for names, by_values in results.items():
            values = tuple(map(settings.__getitem__, names))
            if values in by_values:
                return by_values[values]
        noted = _Noted(settings)
        result = compute(noted)
        names = tuple(noted.names)
        results.setdefault(names, {})[tuple(map(settings.__getitem__, names))] = result
        return result
