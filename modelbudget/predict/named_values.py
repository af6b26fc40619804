"""Values by name, of a model or over a grid: a field or a quantity, conventions included."""

from collections.abc import Sequence
from typing import Any, get_args

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.predict import by_regime, grid_columns
from modelbudget.predict.formula import formula
from modelbudget.predict.grid import Grid
from modelbudget.predict.grid_rows import Chunk
from modelbudget.sweeps.quantity_names import Quantity


def value_of(name: str, family: type[Architecture], a: Any, r: Any) -> tuple[Any, Any]:
    """Return a value in one reading of the fields, and where its formula holds (1, 0, a column).

    Peaks are the largest phase; FLOPs under a convention are those of a token of the run's length.
    """
    if name in get_args(Quantity):
        terms, holds = formula(family, name, a, r)
        return of_model(name, terms) if terms else 0, holds
    for schema, record in ((family, a), (RunConfig, r)):
        if name in schema.model_fields:
            return getattr(record, name), 1
    return 0, 0


def values_in(grid: Grid, namespace: Any, fields: dict, names: Sequence[str]) -> dict[str, tuple]:
    """Return the value of each name and where it holds, in one reading of a grid's fields."""
    family = grid.base.family
    a, r = (namespace(schema, fields) for schema in (family, RunConfig))
    return {name: value_of(name, family, a, r) for name in names}


def column(grid: Grid, name: str, chunk: Chunk) -> pl.Series:
    """Return the values of a name in the rows of a chunk, null without a formula and a program."""
    fields = grid.values(chunk)
    value_and_holds = values_in(grid, grid_columns.namespace, fields, [name])[name]
    (known,) = grid_columns.columns(grid, chunk, fields, [value_and_holds])
    return by_regime.filled(grid.base.family, name, fields, known).alias(name)
