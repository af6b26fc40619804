"""Printed numbers of scaling studies next to the same models, predicted and measured."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import polars as pl

from modelbudget.architecture.counting_conventions import BY_NAME, PARAMETERS, Convention
from modelbudget.architecture.terms import Term
from modelbudget.catalogue.published_scaling import Ladder, Published, published_scaling
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.predict.counts_by_convention import relative_error

EXACT, ROUNDED, DIFFERS = "exact", "within rounding", "differs"
NO_COUNT, MISSING = "not a count", "not in this run"


class Row(NamedTuple):
    """One printed number under its convention; None where the run has not counted the model."""

    ladder: Ladder
    printed: Published
    convention: Convention
    predicted: int | None
    measured: int | None

    @property
    def verdict(self) -> str:
        """Whether the number is reproduced, by prediction and, if there is one, measurement."""
        if self.predicted is None:
            return MISSING
        if self.ladder.reason:
            return NO_COUNT
        counts = {self.predicted, self.predicted if self.measured is None else self.measured}
        off = max(abs(counted - self.printed.published) for counted in counts)
        return DIFFERS if off > self.rounding else EXACT if off == 0 else ROUNDED

    @property
    def rounding(self) -> int:
        """Half of the last printed digit."""
        rounding = self.printed.rounding
        return self.ladder.rounding if rounding is None else rounding

    @property
    def error(self) -> float | None:
        """Return (printed − predicted) / predicted."""
        return self.predicted and relative_error(self.printed.published, self.predicted)

    @property
    def notes(self) -> str:
        """What a reader should know of the number."""
        notes = (self.printed.note, self.ladder.note, self.ladder.reason)
        return "; ".join(note for note in notes if note)


def rows(path: Path, sweeps: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> list[Row]:
    """Count every model of the file from points and comparisons of sweeps. Raises InputError."""
    counted: dict[str, tuple[SimpleNamespace, pl.DataFrame]] = {}
    for points, comparison in sweeps:
        parameters = comparison.filter(pl.col("quantity") == "parameters")
        by_label = parameters.partition_by("label", as_dict=True)
        for point in points.iter_rows(named=True):
            if (label := point["label"]) not in counted and (label,) in by_label:
                counted[label] = SimpleNamespace(**point), by_label[(label,)]
    return [
        _row(path, ladder, printed, counted.get(printed.model))
        for ladder in published_scaling(path)
        for printed in ladder.rows
    ]


def _row(path: Path, ladder: Ladder, printed: Published, counted) -> Row:
    name = printed.convention or ladder.convention
    if name not in BY_NAME:
        raise InputError(
            [f"{path}: convention = {show(name)}: unknown{offered(name, BY_NAME, '')}"]
        )
    row = Row(ladder, printed, BY_NAME[name], None, None)
    if counted is None:
        return row
    a, table = counted
    predicted, measured = (_count(row, a, table, of) for of in ("predicted", "measured"))
    return row._replace(predicted=predicted, measured=measured)


def _count(row: Row, a: SimpleNamespace, table: pl.DataFrame, witness: str) -> int | None:
    """Return the count from one column of a model's comparison, None if values are missing.

    An estimate from sizes alone, which no component enters, is not measured.
    """
    if table[witness].has_nulls():
        return None
    ladder, printed, convention, *_ = row
    terms = {name: Term(n) for name, n in table.select("component", witness).iter_rows()}
    length = printed.length or ladder.length or 0
    number = convention.value(terms, a, length)
    if witness == "measured" and number == convention.value({}, a, length):
        return None
    number *= printed.tokens or 1
    return number + printed.added * (convention.unit == PARAMETERS)
