"""Formulas over the rows of a grid, with as little arithmetic as their axes allow.

A formula is read once as a graph, in which equal expressions are one node. A node depends on few
axes: it is evaluated once for each combination of those, as fields are (`predict/grid.py`), and
looked up where an operation combines it with a node of other axes.
"""

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.evaluators.graph import Graph, Node
from modelbudget.architecture.terms import of_model
from modelbudget.predict.grid import Grid
from modelbudget.predict.grid_rows import Chunk

SPARSE = 8
"""Combinations of axes are not numbered where there could be more than this many for each row."""

_OPERATIONS: dict[str, Callable] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    graph.CEIL_DIV: lambda x, y: -(-x // y),
    graph.LARGEST: np.maximum,
    graph.POSITIVE: lambda x: (x > 0) * 1,
}


class Combinations(NamedTuple):
    """The combinations of some axes: a row that has each, and the number of that of each row."""

    row: np.ndarray
    number: np.ndarray


def totals(
    grid: Grid, chunk: Chunk, values: dict, quantities: Sequence[str], within: str = ""
) -> list[pl.Series]:
    """Return each quantity of the model in the rows of a chunk; null without a formula.

    `values`: every field in these rows; `within`: how the names of components begin that count.
    """
    formulas = []
    for quantity, (terms, holds) in grid.formulas(namespace, values, quantities).items():
        inside = {name: term for name, term in terms.items() if name.startswith(within)}
        formulas.append((of_model(quantity, inside), holds))
    return columns(grid, chunk, values, formulas)


def columns(
    grid: Grid, chunk: Chunk, values: dict, formulas: Iterable[tuple[Any, Any]]
) -> list[pl.Series]:
    """Return formulas in the rows of a chunk; null where one does not hold.

    `formulas`: each with where it holds, as expressions of `namespace`.
    """
    of_formulas, of_holds = zip(*formulas, strict=True)
    conditions = [holds for holds in of_holds if not isinstance(holds, int) or not holds]
    evaluated = Rows(grid, chunk, values).evaluated([*of_formulas, *conditions])
    none = pl.repeat(None, chunk.rows, dtype=pl.Int64, eager=True)
    is_known = (pl.Series(holds == 1) for holds in evaluated[len(of_formulas) :])
    return [
        column if isinstance(holds, int) and holds else column.zip_with(next(is_known), none)
        for column, holds in zip(map(pl.Series, evaluated), of_holds, strict=False)
    ]


def namespace(schema, values: dict) -> SimpleNamespace:
    """Return a record's fields: expressions of columns; numbers and text unchanged."""
    values_by_name = {name: values[name] for name in schema.model_fields}
    return SimpleNamespace(
        **{n: graph.field(n) if isinstance(v, pl.Series) else v for n, v in values_by_name.items()}
    )


class Rows:
    """The rows of a chunk. A set of axes that vary is a number with a bit for each."""

    def __init__(self, grid: Grid, chunk: Chunk, values: dict):
        self.grid, self.chunk, self.values = grid, chunk, values
        self.axes = {
            axis: index for axis, index in chunk.place.items() if isinstance(index, np.ndarray)
        }
        self.bits = {axis: 1 << i for i, axis in enumerate(self.axes)}
        every = np.arange(chunk.rows)
        self.every = Combinations(every, every)
        self._combinations: dict[int, Combinations] = {}
        self._lookups: dict[tuple[int, int], np.ndarray | None] = {}

    def combinations(self, axes: int) -> Combinations:
        """Return the combinations of some axes, which are numbered once."""
        if axes not in self._combinations:
            self._combinations[axes] = self._numbered(axes)
        return self._combinations[axes]

    def _numbered(self, axes: int) -> Combinations:
        """Return the combinations of some axes; each row is one where they are hardly fewer."""
        code, size = np.zeros(self.chunk.rows, np.int64), 1
        for axis, bit in self.bits.items():
            if axes & bit:
                n = len(self.grid.axes[axis])
                code, size = code * n + self.axes[axis], size * n
        if size > SPARSE * self.chunk.rows:
            return self.every
        is_there = np.zeros(size, bool)
        is_there[code] = True
        number = (np.cumsum(is_there) - 1)[code]
        row = np.empty(np.count_nonzero(is_there), np.int64)
        if 2 * len(row) > self.chunk.rows:
            return self.every
        row[number] = self.every.row
        return Combinations(row, number)

    def lookup(self, axes: int, wanted: int) -> np.ndarray | None:
        """Return the combination of `axes` in each of `wanted`, which has them; None: the same."""
        if (axes, wanted) not in self._lookups:
            narrow, wide = self.combinations(axes), self.combinations(wanted)
            self._lookups[axes, wanted] = None if narrow is wide else narrow.number[wide.row]
        return self._lookups[axes, wanted]

    def evaluated(self, values: Iterable) -> list[np.ndarray]:
        """Return the values of expressions and numbers in each row."""
        read = Graph()
        roots = [read.node(value) for value in values]
        nodes = list(read.nodes)
        last = _last_uses(nodes, roots)
        results: dict[int, _Value] = {}
        for number, (operation, left, right) in enumerate(nodes):
            if number not in last:
                continue
            if operation == graph.FIELD:
                results[number] = self._field(read.fields[left])
                continue
            if operation == graph.CONSTANT:
                results[number] = 0, left
                continue
            axes, x = results[left]
            if operation == graph.POSITIVE:
                results[number] = axes, (x > 0) * 1
            else:
                axes_of_y, y = results[right]
                if axes != axes_of_y:
                    both = axes | axes_of_y
                    x, y = self._at(axes, x, both), self._at(axes_of_y, y, both)
                    axes = both
                results[number] = axes, _OPERATIONS[operation](x, y)
                if last[right] == number and right != left:
                    del results[right]
            if last[left] == number:
                del results[left]
        every = sum(self.bits.values())
        values = (self._at(*results[root], every) for root in roots)
        return [np.broadcast_to(np.asarray(x, np.int64), self.chunk.rows) for x in values]

    def _field(self, name: str) -> "_Value":
        axes = sum(self.bits.get(axis, 0) for axis in self.grid.fields[name].axes)
        return axes, self.values[name].to_numpy()[self.combinations(axes).row]

    def _at(self, axes: int, value: Any, wanted: int) -> Any:
        """Return a value of some axes for each combination of `wanted`, which has them."""
        if axes in (0, wanted):
            return value
        index = self.lookup(axes, wanted)
        return value if index is None else value[index]


_Value = tuple[int, Any]
"""Axes, and an array with a number for each of their combinations; without axes a number."""


def _last_uses(nodes: list[Node], roots: list[int]) -> dict[int, int]:
    """Return the last node that reads each node that roots need; of a root the end."""
    last = dict.fromkeys(roots, len(nodes))
    for number in range(len(nodes) - 1, -1, -1):
        if number in last:
            operation, left, right = nodes[number]
            if operation not in (graph.FIELD, graph.CONSTANT):
                last.setdefault(left, number)
                if operation != graph.POSITIVE:
                    last.setdefault(right, number)
    return last
