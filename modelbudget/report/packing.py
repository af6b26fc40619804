"""Data of the page as columns, which compress well, and compressed as text of a script."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from modelbudget.architecture.evaluators.graph import CONSTANT, NEAR

_SAFE = {code: code + 256 for code in map(ord, "\0\r<")}
"""Characters that HTML would read as others, and what stands for them in the page."""


def packed(data, default: Callable | None = None) -> str:
    """Return the data as compressed JSON. Equal data give equal text.

    `default` returns what stands for data that JSON does not have.
    """
    text = json.dumps(
        data, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=default
    )
    return packed_bytes(text.encode())


def packed_bytes(content: bytes) -> str:
    """Return compressed bytes as text, seven bits a character.

    Base85 would take 7 % more. The characters of a script are not parsed: `<` alone could end it.
    Blocks are shorter than zlib's default (memLevel 8), so that their codes fit what they hold: all
    data of the page take 1 % less.
    """
    stream = zlib.compressobj(9, memLevel=6)
    bits = np.unpackbits(np.frombuffer(stream.compress(content) + stream.flush(), np.uint8))
    bits = np.pad(bits, (0, -bits.size % 7)).reshape(-1, 7)
    return (np.packbits(bits, axis=1) >> 1).tobytes().decode("ascii").translate(_SAFE)


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
