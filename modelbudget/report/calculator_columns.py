"""Nodes of the quantities of the calculator as columns of small numbers, which compress well."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modelbudget.architecture.evaluators.graph import CONSTANT

FAR = 128
"""The smallest number that takes three bytes."""


def in_columns(
    runs: Mapping[str, Mapping[str, Sequence[int]]], lists: dict[tuple[str, ...], int]
) -> list:
    """Return columns of the quantities of runs, the row of each, and the number of their names.

    Equal runs have one row, and equal tuples of names one number in `lists`. A quantity has two
    columns, for budgets and for the nodes of whether its formula holds: each number less the one
    before, null where a run has none.
    """
    rows: dict[str, int] = {}
    place = [rows.setdefault(json.dumps(run, sort_keys=True), len(rows)) for run in runs.values()]
    quantities = [json.loads(row) for row in rows]
    columns = {
        name: [_steps([row[name][k] if name in row else None for row in quantities])
               for k in (0, 1)]
        for name in dict.fromkeys(name for row in quantities for name in row)
    }  # fmt: skip
    return [columns, place, lists.setdefault(tuple(runs), len(lists))]


def as_steps(budgets: Iterable[tuple]) -> dict[str, list]:
    """Return budgets as lists of components, each once, and a row of nodes for each budget.

    A row is the index of its list and the nodes, each less the one before: first the total, less
    the total before. So budgets of equal formulas have nearly equal rows.
    """
    lists: dict[tuple, int] = {}
    rows, before = [], 0
    for whole, *parts in budgets:
        index = lists.setdefault(tuple(name for name, _ in parts), len(lists))
        nodes = [before, whole, *(node for _, node in parts)]
        rows.append([index, *(node - last for last, node in itertools.pairwise(nodes))])
        before = whole
    return {"components": list(map(list, lists)), "rows": rows}


def _steps(values: Iterable[int | None]) -> list[int | None]:
    steps, before = [], 0
    for value in values:
        steps.append(None if value is None else value - before)
        before = before if value is None else value
    return steps


def in_bytes(graph: Mapping) -> tuple[dict, bytes]:
    """Return what a script needs to read a graph (`Graph.data`), and its columns of numbers.

    A number below FAR is one byte. Another one is a negative reference or the length of a copy: its
    absolute value has its high byte there, and the two others after the column, in columns of their
    own, since each of the three compresses better alone. Constants are there by their place.
    """
    constants, left = [], []
    for operation, operand in zip(graph["operations"], graph["left"], strict=True):
        is_constant = operation == CONSTANT
        left.append(len(constants) if is_constant else operand)
        constants += [operand] if is_constant else []
    columns = [left, graph["right"], *graph["copies"]]
    about = {"fields": graph["fields"], "operations": graph["operations"], "constants": constants}
    return about | {"lengths": list(map(len, columns))}, b"".join(map(_three_bytes, columns))


def _three_bytes(numbers: Sequence[int]) -> bytes:
    column = np.array(numbers, np.int32)
    is_far = (column < 0) | (column >= FAR)
    far = abs(column[is_far])
    column[is_far] = FAR + (far >> 16)
    if column.max(initial=0) > 255:
        raise ValueError(
            f"{far.max():,}: the graph of the page may have {(256 - FAR) << 16:,} nodes"
        )
    return b"".join((part & 255).astype(np.uint8).tobytes() for part in (column, far >> 8, far))
