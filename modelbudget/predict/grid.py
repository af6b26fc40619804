"""Columnar evaluation of a sweep grid, in chunks, without creating a Point for each row.

A field, a constraint or a check of a record depends on few axes. It is evaluated once for each
combination of those, by the code that also creates single points, and looked up in all rows with
that combination. Thus a grid of a hundred million rows is checked and written.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from pydantic import ValidationError

from modelbudget.architecture.constraint import Check, check_all
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import Setting
from modelbudget.catalogue.named_models import Base
from modelbudget.common.expressions import LazyValues, expression_of
from modelbudget.predict import grid_rows
from modelbudget.predict.formula import formula
from modelbudget.predict.grid_rows import Chunk, Keeps, filled
from modelbudget.sweeps import derive
from modelbudget.sweeps.check_quantities import quantity_constraints
from modelbudget.sweeps.check_values import field_value
from modelbudget.sweeps.device_defaults import DeviceDefault
from modelbudget.sweeps.expand import where
from modelbudget.sweeps.sweep_file import MAX_POINTS, Sweep, Value
from modelbudget.sweeps.sweep_mistakes import Mistakes

_ABSENT = ("missing", "extra_forbidden")
_NOTHING = object()
"""Value of a field in rows that an earlier check has rejected or where it has no value."""
_DROPPED = ("dropped",)


class Cells(NamedTuple):
    """A value for each combination of some axes; the last axis varies fastest."""

    axes: tuple[str, ...]
    values: list


class CellMistakes(NamedTuple):
    """Mistakes of combinations: an index of a mistake for each; 0 is none."""

    axes: tuple[str, ...]
    numbers: np.ndarray
    mistakes: list[tuple[str, ...]]

    @classmethod
    def of(cls, axes: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> "CellMistakes":
        """Return the mistakes of combinations, of which each has some lines or none."""
        mistakes = list(dict.fromkeys(filter(None, lines)))
        numbers = {(): 0} | {mistake: k for k, mistake in enumerate(mistakes, start=1)}
        return cls(axes, np.array([numbers[mistake] for mistake in lines], np.uint32), mistakes)


class _RejectedError(Exception):
    """A field without a value was read; an earlier check has reported why."""


def _as_number(value):
    """Convert true to 1, false to 0, and a missing value to 0: its rows are dropped."""
    return int(value) if isinstance(value, bool) else 0 if value is _NOTHING else value


class Grid:
    """The grid of a sweep over one base. `axes` are those of the file, without `base`.

    Raises ValueError if derived fields are circular, or if an expression would have to be evaluated
    for more than MAX_POINTS combinations.
    """

    def __init__(self, name: str, base: Base, sweep: Sweep):
        self.name, self.base, self.sweep = name, base, sweep
        self.axes = {name: values for name, values in sweep.axes().items() if name != "base"}
        self.fields: dict[str, Cells] = {}
        self._stages: list[list[CellMistakes]] = []
        self._resolve()
        self._check_records()
        of_records = {*self.base.family.categorical(), *RunConfig.categorical()}
        self.categories = {
            name
            for name, cells in self.fields.items()
            if name in of_records or any(isinstance(value, str) for value in cells.values)
        }
        self._columns = {
            name: np.array(list(map(_as_number, cells.values)), np.int64)
            for name, cells in self.fields.items()
            if name not in self.categories
        }
        self._stages = [stage for stage in self._stages if any(check.mistakes for check in stage)]

    @property
    def combinations(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def _resolve(self) -> None:
        """Evaluate fields and constraints, as `expand.resolve` and `expand.point_at` do."""
        chosen = self.sweep.fixed | {name: values[0] for name, values in self.axes.items()}
        values, rules = derive.settled(self.base, chosen, self.sweep.derive)
        defaults = derive.defaults_of(self.base.family)
        for name, value in values.items():
            swept = name in self.axes
            self.fields[name] = Cells((name,), self.axes[name]) if swept else Cells((), [value])
        for name, expression in rules.items():
            if expression.names <= self.fields.keys():
                cells = self._stage(
                    f"{name}: {expression.text}",
                    lambda read, n=name, e=expression: derive.derived(n, e, self._named(e, read)),
                )
                is_constant = len({*cells.values}) == 1
                self.fields[name] = Cells((), cells.values[:1]) if is_constant else cells
            elif name in defaults:
                self.fields[name] = Cells((), [defaults[name]])
        for i, text in enumerate(self.sweep.constraints):
            expression = expression_of(text)
            kept = self._outcomes(
                text, lambda read, i=i, e=expression: derive.keeps(i, e.text, self._named(e, read))
            )
            mistakes = [lines or (() if value else _DROPPED) for value, lines in kept.values]
            self._stages.append([CellMistakes.of(kept.axes, mistakes)])

    def _named(self, expression: derive.Rule, read: Callable) -> dict[str, Value]:
        """Return the values of the names in an expression, as far as they are set.

        Those of a default are read when it reads them: of many axes it needs few.
        """
        if isinstance(expression, DeviceDefault | Setting):
            return LazyValues(read)
        return {name: read(name) for name in expression.names & self.fields.keys()}

    def _check_records(self) -> None:
        """Check fields as the validation of records and `expand.check_quantities` do."""
        names = list(self.fields)
        of_run = [name for name in names if name in derive.FIELDS_OF_RUN]
        of_model = [name for name in names if name not in derive.FIELDS_OF_RUN]
        for schema, names in ((self.base.family, of_model), (RunConfig, of_run)):
            for name in names:
                self.fields[name] = self._stage(name, lambda read, n=name: derive.whole(n, read(n)))
            self._stages.append([self._names(schema, names)])
            self._check_fields(schema, [name for name in names if name in schema.model_fields])
            self._check_constraints(schema.all_constraints())
        quantities = tuple(self.sweep.measure.quantities)
        self._check_constraints(quantity_constraints(self.base.family, quantities))

    def _check_constraints(self, constraints: Sequence[Check]) -> None:
        for check in constraints:
            name = getattr(check, "__name__", str(check))
            self._stage(name, lambda read, check=check: check_all([check], LazyValues(read)))

    def _check_fields(self, schema: type[Record], names: list[str]) -> None:
        """Check each field separately; validation of a record reports all together."""
        stage = []
        for name in names:
            cells = self._outcomes(name, lambda read, n=name: field_value(schema, n, read(n)))
            self.fields[name] = Cells(cells.axes, [value for value, _ in cells.values])
            stage.append(CellMistakes.of(cells.axes, [lines for _, lines in cells.values]))
        self._stages.append(stage)

    def _names(self, schema: type[Record], names: list[str]) -> CellMistakes:
        """Check for missing and unknown fields, which are the same in all rows."""
        try:
            schema.model_validate({name: self.fields[name].values[0] for name in names})
        except ValidationError as error:
            follow = derive.with_expression(self.base, self.sweep.derive)
            return CellMistakes.of((), [tuple(derive.wrong_fields(error, schema, follow, _ABSENT))])
        return CellMistakes.of((), [()])

    def _stage(self, name: str, function: Callable) -> Cells:
        """Evaluate a function; rows for which it raises are rejected."""
        cells = self._outcomes(name, function)
        self._stages.append([CellMistakes.of(cells.axes, [lines for _, lines in cells.values])])
        return Cells(cells.axes, [value for value, _ in cells.values])

    def _outcomes(self, name: str, function: Callable) -> Cells:
        """Evaluate a function of a point, and collect the mistakes that it raises.

        The function is passed a reader of fields. It is run for each combination of the axes that
        it was seen to read. If a run reads another axis, all are run again with that axis too. When
        none does, these runs cover every row, since each row reads the same values as one of them.
        """
        noted: tuple[str, ...] = ()
        while True:
            combinations = math.prod(len(self.axes[axis]) for axis in noted)
            if combinations > MAX_POINTS:
                raise ValueError(
                    f"{name}: depends on {', '.join(noted)}, {combinations:,} combinations; "
                    f"at most {MAX_POINTS:,} are allowed"
                )
            read: set[str] = set()
            outcomes = []
            for place in self._places(noted):
                outcomes.append(self._outcome(function, place, read))
                if not read <= set(noted):
                    break
            else:
                return Cells(noted, outcomes)
            noted = tuple(axis for axis in self.axes if axis in read or axis in noted)

    def _outcome(self, function: Callable, place: dict[str, int], noted: set[str]) -> tuple:
        def read(name: str):
            if name not in self.fields:
                raise _RejectedError
            cells = self.fields[name]
            noted.update(cells.axes)
            value = cells.values[self._index(dict.fromkeys(cells.axes, 0) | place, cells.axes)]
            if value is _NOTHING:
                raise _RejectedError
            return value

        try:
            return function(read), ()
        except _RejectedError:
            return _NOTHING, ()
        except ValueError as error:
            return _NOTHING, tuple(str(error).splitlines())

    def _places(self, axes: Collection[str]) -> Iterator[dict[str, int]]:
        """Yield the combinations of some axes, by index; the last axis varies fastest."""
        for place in itertools.product(*(range(len(self.axes[axis])) for axis in axes)):
            yield dict(zip(axes, place, strict=True))

    def _index(self, place: dict, axes: tuple[str, ...]):
        """Return the index of a combination, or of each row's combination."""
        index = 0
        for axis in axes:
            index = index * len(self.axes[axis]) + place[axis]
        return index

    def values(self, chunk: Chunk) -> dict[str, int | str | pl.Series]:
        """Return every field in the rows of a chunk; numbers that vary are columns."""
        values = {name: self._value(name, cells, chunk) for name, cells in self.fields.items()}
        return {n: pl.Series(v) if isinstance(v, np.ndarray) else v for n, v in values.items()}

    def _value(self, name: str, cells: Cells, chunk: Chunk):
        index = self._index(chunk.place, cells.axes)
        if not isinstance(index, int):
            return self._columns[name][index]
        return _as_number(cells.values[index])

    def known(self, names: Sequence[str], chunk: Chunk) -> list[int | str | np.ndarray]:
        """Return the fields among `names` that the axes of a chunk determine, in its rows."""
        cells = ((name, self.fields[name]) for name in names)
        return [self._value(n, cell, chunk) for n, cell in cells if {*cell.axes} <= {*chunk.place}]

    def first(self) -> dict[str, int | str] | None:
        """Return every field in the first row that no constraint drops, if there is one."""
        chunk = next(self.allowed(), None)
        values = self.values(chunk) if chunk else {}
        return {n: v[0] if isinstance(v, pl.Series) else v for n, v in values.items()} or None

    def varying(self) -> list[str]:
        """Return the fields that vary between rows."""
        return [n for n, cells in self.fields.items() if len({*cells.values} - {_NOTHING}) > 1]

    def swept(self, chunk: Chunk) -> dict[str, pl.Series]:
        """Return base and axes in the rows of a chunk, in the order of the sweep file."""
        columns = {}
        for axis in self.sweep.axes():
            index = chunk.place.get(axis)  # None: of `base`
            if isinstance(index, np.ndarray):
                columns[axis] = pl.Series(self.axes[axis]).gather(index)
            else:
                value = self.name if index is None else self.axes[axis][index]
                columns[axis] = pl.Series([value]).new_from_index(0, chunk.rows)
        return columns

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows in chunks; categorical fields are constant within a chunk."""
        return self._rows([], None)

    def allowed(self, keeps: Keeps = None) -> Iterator[Chunk]:
        """Yield the rows that no constraint drops, in the order of `chunks`.

        `keeps` is called with the rows after each axis.
        """
        return self._rows([check for stage in self._stages for check in stage], keeps)

    def _rows(self, checks: list[CellMistakes], keeps: Keeps) -> Iterator[Chunk]:
        """Yield the rows that pass, in as few chunks as can be.

        Axis after axis is joined, and a check reads the rows as soon as all its axes are there.
        """
        # The axes of categorical fields have one value in a chunk.
        constant = {axis for name in self.categories for axis in self.fields[name].axes}
        order = sorted(self.axes, key=lambda axis: axis not in constant)
        steps: list[list[CellMistakes]] = [[] for _ in range(len(constant), len(order) + 1)]
        for check in checks:
            n_needed = max((order.index(axis) + 1 for axis in check.axes), default=0)
            steps[max(n_needed - len(constant), 0)].append(check)
        for place in self._places(order[: len(constant)]):
            check = self._passing(Chunk({**place}, 1), steps[0], keeps)
            yield from filled(self._joined(check, order[len(constant) :], steps[1:], keeps))

    def _joined(
        self, chunk: Chunk, axes: list[str], steps: list[list[CellMistakes]], keeps: Keeps
    ) -> Iterator[Chunk]:
        """Yield the rows of a chunk with all values of more axes; `steps`: checks after each."""
        if not chunk.rows or not axes:
            yield from [chunk] * bool(chunk.rows)
            return
        size = len(self.axes[axes[0]])
        block = max(1, grid_rows.ROWS // size)
        for start in range(0, chunk.rows, block):
            part = self._passing(chunk.slice(start, block).times(axes[0], size), steps[0], keeps)
            yield from self._joined(part, axes[1:], steps[1:], keeps)

    def _passing(self, chunk: Chunk, checks: list[CellMistakes], keeps: Keeps = None) -> Chunk:
        """Return the rows of a chunk that pass; each check reads those still left."""
        for check in checks:
            index = self._index(chunk.place, check.axes)
            passes = check.numbers[index] == 0
            if isinstance(index, int):
                chunk = Chunk(chunk.place, chunk.rows * bool(passes))
            elif not passes.all():
                chunk = chunk.where(passes)
            if not chunk.rows:
                break
        return chunk.where(keeps(chunk)) if keeps and chunk.rows else chunk

    def check(self, mistakes: Mistakes) -> bool:
        """Add the first mistake of each row. Returns whether there is none."""
        if not any(set(check.mistakes) - {_DROPPED} for stage in self._stages for check in stage):
            return True
        by_line: dict[str, tuple[int, int]] = {}
        for chunk in self.chunks():
            is_left = np.ones(chunk.rows, bool)
            for stage in self._stages:
                passes = is_left
                for check in stage:
                    index = self._index(chunk.place, check.axes)
                    number = np.broadcast_to(check.numbers[index], chunk.rows)
                    table = pl.DataFrame({"number": number}).with_columns(row=self.numbers(chunk))
                    rejected = table.filter(is_left & (number > 0)).group_by("number")
                    counts = rejected.agg(first=pl.col("row").min(), times=pl.len()).sort("number")
                    for k, first, times in counts.rows():
                        lines = check.mistakes[k - 1]
                        for line in lines if lines != _DROPPED else ():
                            before = by_line.get(line, (first, 0))
                            by_line[line] = min(before[0], first), before[1] + times
                    passes = passes & (number == 0)
                is_left = passes
        for line, (first, times) in sorted(by_line.items(), key=lambda item: item[1][0]):
            mistakes.add(line, where(self.settings(first)), times)
        return not by_line

    def numbers(self, chunk: Chunk):
        """Return the index of each row of a chunk in the order of the sweep file."""
        return self._index(chunk.place, tuple(self.axes))

    def settings(self, row: int) -> dict[str, Value]:
        """Return the sweep file's values for a combination, by its index in the file's order."""
        chosen: dict[str, Value] = {}
        for axis in reversed(self.sweep.axes()):
            if axis == "base":
                chosen[axis] = self.name
                continue
            row, index = divmod(row, len(self.axes[axis]))
            chosen[axis] = self.axes[axis][index]
        return dict(reversed(chosen.items()))

    def formulas(self, namespace, values: dict, quantities: Sequence[str]) -> dict[str, tuple]:
        """Return the terms of each quantity and where they hold, in one reading of the fields."""
        a, r = (namespace(schema, values) for schema in (self.base.family, RunConfig))
        return {quantity: formula(self.base.family, quantity, a, r) for quantity in quantities}

    def bounds(self) -> Iterator[dict[str, int | str | tuple[int, int]]]:
        """Yield all fields for each choice of categories in rows; varying numbers as bounds."""
        numbers, categories = {}, {}
        for name, cells in self.fields.items():
            if name in self.categories:
                categories[name] = cells
            elif len(cells.values) > 1:
                column = self._columns[name]
                numbers[name] = int(column.min()), int(column.max())
            else:
                numbers[name] = _as_number(cells.values[0])
        choices = dict.fromkeys(
            tuple(cells.values[self._index(place, cells.axes)] for cells in categories.values())
            for place in self._places({n: 0 for cells in categories.values() for n in cells.axes})
        )
        for chosen in choices:
            if _NOTHING not in chosen:
                yield numbers | dict(zip(categories, chosen, strict=True))
