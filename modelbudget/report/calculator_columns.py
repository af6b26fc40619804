"""Nodes of the quantities of the calculator as columns, which compress well."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modelbudget.architecture.evaluators.graph import CONSTANT, NEAR


def in_columns(runs: Mapping[str, Mapping[str, Sequence[int]]]) -> dict:
    """Return the names of runs, and columns of their quantities.

    A quantity has two columns, for budgets and for the nodes of whether its formula holds: null
    where a run has none.
    """
    columns = {
        name: [[run[name][k] if name in run else None for run in runs.values()] for k in (0, 1)]
        for name in dict.fromkeys(name for run in runs.values() for name in run)
    }
    return {"names": list(runs), "columns": columns}


def with_lists(budgets: Iterable[tuple]) -> dict[str, list]:
    """Return budgets as lists of components, each once, and a row of nodes for each budget.

    A row is the index of its list and the nodes, first the total.
    """
    lists: dict[tuple, int] = {}
    rows = [
        [lists.setdefault(tuple(name for name, _ in parts), len(lists)), whole,
         *(node for _, node in parts)]
        for whole, *parts in budgets
    ]  # fmt: skip
    return {"components": list(map(list, lists)), "rows": rows}


def in_bytes(graph: Mapping) -> tuple[dict, bytes]:
    """Return what a script needs to read a graph (`Graph.data`), and its columns of numbers.

    Constants are there by their place, and an operand that is the number of a node NEAR above it:
    those below are distances.
    """
    constants, left = [], []
    for operation, operand in zip(graph["operations"], graph["left"], strict=True):
        is_constant = operation == CONSTANT
        left.append(len(constants) if is_constant else operand)
        constants += [operand] if is_constant else []
    about = {"fields": graph["fields"], "operations": graph["operations"], "constants": constants}
    about["lengths"] = [len(left), len(graph["copies"][0])]
    operands = (np.array(column, np.int32) for column in (left, graph["right"]))
    above = (np.where(column < 0, NEAR - column, column) for column in operands)
    return about, b"".join(map(_three_bytes, (*above, *graph["copies"])))


def _three_bytes(numbers: Sequence[int] | np.ndarray) -> bytes:
    """Return three columns of bytes, the high ones first: each compresses better alone."""
    column = np.array(numbers, np.int32)
    return b"".join((column >> bits & 255).astype(np.uint8).tobytes() for bits in (16, 8, 0))
