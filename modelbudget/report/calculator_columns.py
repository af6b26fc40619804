"""Nodes of the quantities of the calculator as columns, which compress well."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from modelbudget.architecture.evaluators.graph import CONSTANT

FAR = 128
"""The smallest number that takes three bytes."""


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

    Constants are there by their place.
    """
    constants, left = [], []
    for operation, operand in zip(graph["operations"], graph["left"], strict=True):
        is_constant = operation == CONSTANT
        left.append(len(constants) if is_constant else operand)
        constants += [operand] if is_constant else []
    about = {"fields": graph["fields"], "operations": graph["operations"], "constants": constants}
    about["lengths"] = [len(left), len(graph["copies"][0])]
    operands = b"".join(map(_references, (left, graph["right"])))
    return about, operands + b"".join(map(_three_bytes, graph["copies"]))


def _references(numbers: Sequence[int]) -> bytes:
    """Return operands below FAR as they are, and after them those that are references by number.

    Such a reference, which is negative, says how many references ago the same one was; 0 if none
    was. The first ones are steps from the one before, doubled, and one less if negative.
    """
    column = np.array(numbers, np.int32)
    is_far = (column < 0) | (column >= FAR)
    places, ago, first = dict[int, int](), [], []
    for place, number in enumerate(abs(column[is_far]).tolist()):
        ago.append(place - places.get(number, place))
        first += [] if number in places else [number]
        places[number] = place
    steps = np.diff(first, prepend=0)
    column[is_far] = FAR
    doubled = np.where(steps < 0, -2 * steps - 1, 2 * steps)
    return column.astype(np.uint8).tobytes() + _three_bytes(ago) + _three_bytes(doubled)


def _three_bytes(numbers: Sequence[int] | np.ndarray) -> bytes:
    """Return numbers below FAR as one byte.

    Another one has its high byte there, and the two others after the column, in columns of their
    own, since each of the three compresses better alone.
    """
    column = np.array(numbers, np.int32)
    far = column[is_far := column >= FAR]
    column[is_far] = FAR + (far >> 16)
    if column.max(initial=0) > 255:
        raise ValueError(
            f"{far.max():,}: the graph of the page may have {(256 - FAR) << 15:,} nodes"
        )
    return b"".join((part & 255).astype(np.uint8).tobytes() for part in (column, far >> 8, far))
