"""Values by name, of a model or over a grid: a field or a quantity, conventions included."""

from collections.abc import Sequence
from typing import Any, get_args

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.evaluators import polars_columns, polynomials
from modelbudget.architecture.evaluators.polynomials import Scheme
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.predict import by_regime
from modelbudget.predict.formula import formula
from modelbudget.predict.grid import Chunk, Grid
from modelbudget.predict.of_program import USES
from modelbudget.sweeps.quantities import OF_RUN, Quantity

NONE = 0, 0
"""A value that holds nowhere."""


def fields_of(family: type[Architecture]) -> list[str]:
    """Return the numeric fields of a family and of its runs."""
    return [*family.numeric(), *RunConfig.numeric()]


def value_of(name: str, family: type[Architecture], a: Any, r: Any) -> tuple[Any, Any]:
    """Return a value in one reading of the fields, and where its formula holds (1, 0, a column).

    Peaks are the largest phase; FLOPs under a convention are those of a token of the run's length.
    """
    if name in get_args(Quantity):
        terms, holds = formula(family, name, a, r)
        return of_model(name, terms) if terms else 0, holds
    for kind, record in ((family, a), (RunConfig, r)):
        if name in kind.model_fields:
            return getattr(record, name), 1
    return NONE


def values_in(grid: Grid, namespace: Any, fields: dict, names: Sequence[str]) -> dict[str, tuple]:
    """Return the value of each name and where it holds, in one reading of a grid's fields."""
    family = grid.base.family
    a, r = (namespace(kind, fields) for kind in (family, RunConfig))
    return {name: value_of(name, family, a, r) for name in names}


class NamedValues:
    """Evaluates names in the rows of a grid.

    Formulas without a run are multiplied out once for each choice of categorical fields.
    """

    def __init__(self, grid: Grid, names: Sequence[str]):
        self.grid = grid
        plain = [name for name in names if name not in OF_RUN]
        self.schemes = {
            grid.chosen(bounds): {
                name: (Scheme(value), Scheme(holds))
                for name, (value, holds) in values_in(
                    grid, polynomials.namespace, bounds, plain
                ).items()
            }
            for bounds in grid.bounds()
        }

    def column(self, name: str, chunk: Chunk) -> pl.Series:
        """Return the values in the rows of a chunk, null without a formula and a program."""
        fields = self.grid.values(chunk)
        if name in OF_RUN:
            value, holds = values_in(self.grid, polars_columns.namespace, fields, [name])[name]
        else:
            columns = polynomials.columns(fields)
            value, holds = (
                scheme(columns) for scheme in self.schemes[self.grid.chosen(fields)][name]
            )
        series = polars_columns.series(value, chunk.rows).alias(name)
        if isinstance(holds, int) and holds:
            return series
        is_covered = polars_columns.series(holds, chunk.rows) == 1
        if name in USES:
            others = by_regime.totals(self.grid.base.family, name, fields, ~is_covered)
        else:
            others = pl.repeat(None, chunk.rows, dtype=series.dtype, eager=True)
        return series.zip_with(is_covered, others)
