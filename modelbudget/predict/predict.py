"""Predictions over a table of points. Imports neither modules nor torch.

Closed formulas give all rows at once; where none holds, programs give one row after another.
"""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.readings import columns
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms
from modelbudget.families import families
from modelbudget.predict.formula import formula
from modelbudget.predict.of_program import terms_by_program
from modelbudget.sweeps.points_table import models

KEYS = ["architecture", "run"]


def predict(points: pl.DataFrame, quantities: Sequence[str]) -> pl.DataFrame:
    """Return one row for each architecture × run × component × quantity that is not zero.

    Columns: architecture, run, component, quantity, each (value of one instance), instances,
    predicted (each × instances). Units: a count for `parameters`, bytes, floating-point
    operations. Without a formula, there is one row with a null component and prediction.
    """
    distinct = points.unique(KEYS, keep="first", maintain_order=True)
    parts = [
        rows
        for family, a, r, group in _grouped(distinct)
        for quantity in quantities
        for rows in _rows_of(group, quantity, *formula(family, quantity, a, r))
    ]
    table = pl.concat(parts)
    return table.filter(pl.col("predicted").is_null() | (pl.col("predicted") != 0)).sort(
        *KEYS, "component", "quantity"
    )


def _grouped(
    points: pl.DataFrame,
) -> Iterator[tuple[type[Architecture], SimpleNamespace, SimpleNamespace, pl.DataFrame]]:
    """Yield points grouped by family and categorical fields: one formula evaluates a group."""
    for (name,), rows in points.partition_by("family", as_dict=True).items():
        family = families()[name]
        names = [*family.categorical(), *RunConfig.categorical()]
        for values, same in rows.partition_by(names, as_dict=True).items():
            fields = dict(zip(names, values, strict=True))
            fields |= {n: _size(same[n]) for n in (*family.numeric(), *RunConfig.numeric())}
            a, r = (columns.namespace(kind, fields) for kind in (family, RunConfig))
            yield family, a, r, same


def _size(rows: pl.Series) -> pl.Series | int:
    """Return one number if it is the same in all rows, which simplifies formulas."""
    return int(rows[0]) if (rows == rows[0]).all() else rows.cast(pl.Int64)


def _rows_of(points: pl.DataFrame, quantity: str, terms: Terms, holds) -> Iterator[pl.DataFrame]:
    is_covered = columns.series(holds, points.height) == 1
    keys = points.select(KEYS)
    for component, term in terms.items():
        yield _rows(keys, component, quantity, term).filter(is_covered)
    others, keys = points.filter(~is_covered), keys.filter(~is_covered)
    for number, (architecture, run) in enumerate(models(others)):
        by_program = terms_by_program(quantity, architecture, run) or {None: Term(None, None)}
        for component, term in by_program.items():
            yield _rows(keys[number], component, quantity, term)


def _rows(rows: pl.DataFrame, component: str | None, quantity: str, term: Term) -> pl.DataFrame:
    each, instances = (columns.series(value, rows.height) for value in term)
    return rows.with_columns(
        component=pl.lit(component, pl.String),
        quantity=pl.lit(quantity),
        each=each,
        instances=instances,
        predicted=each * instances,
    )
