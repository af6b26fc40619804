"""Cells of a grid: a value, or the mistakes, of each combination of the axes that decide it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from modelbudget.sweeps.sweep_file import Value

NOTHING = object()
"""Value of a field in rows that an earlier check has rejected or where it has no value."""
DROPPED = ("dropped",)


class Cells(NamedTuple):
    """A value for each combination of some axes; the last axis varies fastest."""

    axes: tuple[str, ...]
    values: list


class CellMistakes(NamedTuple):
    """Mistakes of combinations: an index of a mistake for each; 0 is none."""

    axes: tuple[str, ...]
    numbers: np.ndarray
    mistakes: list[tuple[str, ...]]


class RejectedError(Exception):
    """A field without a value was read; an earlier check has reported why."""


class LazyFields(dict):
    """The fields of one combination, each evaluated when a check reads it."""

    def __init__(self, read: Callable[[str], Value]):
        super().__init__()
        self._read = read

    def __missing__(self, name: str) -> Value:
        return self._read(name)


def mistakes_of(axes: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> CellMistakes:
    mistakes = list(dict.fromkeys(filter(None, lines)))
    numbers = {(): 0} | {mistake: k for k, mistake in enumerate(mistakes, start=1)}
    return CellMistakes(
        axes, np.array([numbers[mistake] for mistake in lines], np.uint32), mistakes
    )


def column_of(values: list) -> np.ndarray:
    return np.array(list(map(as_number, values)), np.int64)


def as_number(value):
    """Convert true to 1, false to 0, and a missing value to 0: its rows are dropped."""
    return int(value) if isinstance(value, bool) else 0 if value is NOTHING else value
