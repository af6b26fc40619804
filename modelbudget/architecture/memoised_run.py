"""Runs whose formulas are computed once for the same settings, and copies of runs of any kind.

The page's calculator reads formulas with hundreds of runs that differ in a few settings, and most
parts of a formula depend on few of these.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import SimpleNamespace
from typing import Any

ABSENT = object()
"""Value of a setting that a run does not have."""


class MemoisedRun:
    """A run whose formulas are computed once for all runs with the same settings that they read.

    It has no `__dict__`: a copy of all settings would read all of them.
    """

    __slots__ = ("_new", "_of", "_read", "_results", "_values")

    def __init__(
        self,
        values: Mapping[str, Any],
        results: dict[tuple, dict[tuple, dict[tuple, Any]]],
        of: "MemoisedRun | None" = None,
        new: Iterable[str] = (),
    ):
        """`results`: of all runs, by formula, names and values of what it reads.

        `of`: the run that this is a copy of, but for the settings `new`.
        """
        self._values, self._results, self._of, self._new = values, results, of, new
        self._read: set[str] = set()

    def __getattr__(self, name: str):
        if name not in self._read:
            self._note(name)
        if name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def changed(self, values: Mapping[str, Any]) -> "MemoisedRun":
        """Return a copy with other values of some settings."""
        return MemoisedRun({**self._values, **values}, self._results, self, values)

    def once(self, formula: Callable, *arguments):
        """Return a formula of some arguments and this run."""
        key = formula, *map(_key, arguments)
        of_formula = self._results.setdefault(key, {})
        for names, by_values in of_formula.items():
            values = self._those_of(names)
            if values in by_values:
                break
        else:
            inner = MemoisedRun(self._values, self._results)
            result = formula(*arguments, inner)
            names = tuple(sorted(inner._read))
            values = self._those_of(names)
            by_values = of_formula.setdefault(names, {})
            by_values[values] = result
        for name in names:
            if name not in self._read:
                self._note(name)
        return by_values[values]

    def _those_of(self, names: tuple[str, ...]) -> tuple:
        return tuple([self._values.get(name, ABSENT) for name in names])

    def _note(self, name: str) -> None:
        self._read.add(name)
        if self._of is not None and name not in self._new:
            self._of._note(name)


def _key(argument):
    if isinstance(argument, SimpleNamespace):
        return argument.__class__, *vars(argument).items()
    return argument


def once(formula: Callable) -> Callable:
    """Let a formula, whose last argument is the run, be computed once for what it reads of it.

    As far as runs note that.
    """

    @wraps(formula)
    def of(*arguments):
        *others, r = arguments
        return r.once(formula, *others) if r.__class__ is MemoisedRun else formula(*arguments)

    return of


def changed(r, values: Mapping[str, Any]):
    """Return a copy of a run with other values of some settings."""
    return r.changed(values) if r.__class__ is MemoisedRun else SimpleNamespace(**vars(r) | values)
