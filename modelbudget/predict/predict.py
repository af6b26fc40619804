"""Predictions over a table of points. Imports neither modules nor torch.

Closed formulas give all rows at once; where none holds, programs give those of one regime.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.evaluators import polars_columns
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term
from modelbudget.families import families
from modelbudget.predict.formula import formula

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
        for family, group in _grouped(distinct)
        for fields in [_fields(family, group)]
        for quantity in quantities
        for rows in _rows_of(family, group, fields, quantity)
    ]
    table = pl.concat(parts)
    return table.filter(pl.col("predicted").is_null() | (pl.col("predicted") != 0)).sort(
        *KEYS, "component", "quantity"
    )


def _grouped(points: pl.DataFrame) -> Iterator[tuple[type[Architecture], pl.DataFrame]]:
    """Yield points grouped by family and categorical fields: one formula evaluates a group."""
    for (name,), rows in points.partition_by("family", as_dict=True).items():
        family = families()[name]
        for same in rows.partition_by(*family.categorical(), *RunConfig.categorical()):
            yield family, same


def _fields(family: type[Architecture], points: pl.DataFrame) -> dict:
    """Return all fields of a group: text and numbers that are the same in all rows, or columns."""
    schemas = (family, RunConfig)
    return {name: points[name][0] for schema in schemas for name in schema.categorical()} | {
        name: _size(points[name]) for schema in schemas for name in schema.numeric()
    }


def _size(rows: pl.Series) -> pl.Series | int:
    """Return one number if it is the same in all rows, which simplifies formulas."""
    return int(rows[0]) if (rows == rows[0]).all() else rows.cast(pl.Int64)


def _rows_of(
    family: type[Architecture], points: pl.DataFrame, fields: dict, quantity: str
) -> Iterator[pl.DataFrame]:
    keys = points.select(KEYS)
    a, r = (polars_columns.namespace(schema, fields) for schema in (family, RunConfig))
    terms, holds = formula(family, quantity, a, r)
    is_covered = polars_columns.series(holds, points.height) == 1
    are_all = is_covered.all()
    if terms:
        rows = _rows(keys, quantity, terms)
        yield rows if are_all else rows.filter(pl.concat([is_covered] * len(terms)))
    if not are_all:
        # With programs and their symbols, which most sweeps do not need.
        from modelbudget.predict.by_regime import rows_by_program

        uncovered, keys = points.filter(~is_covered), keys.filter(~is_covered)
        for numbers, by_program in rows_by_program(
            family, quantity, _fields(family, uncovered), uncovered.height
        ):
            yield _rows(keys[numbers], quantity, by_program or {None: Term(None, None)})


def _rows(points: pl.DataFrame, quantity: str, terms: Mapping[Any, Term]) -> pl.DataFrame:
    """Return the rows of all components: one table is made several times faster than many."""
    n_rows = points.height
    each, instances = (
        pl.concat([polars_columns.series(value, n_rows) for value in values])
        for values in zip(*terms.values(), strict=True)
    )
    names = (pl.Series([name], dtype=pl.String).new_from_index(0, n_rows) for name in terms)
    return pl.concat([points] * len(terms)).with_columns(
        component=pl.concat(names),
        quantity=pl.lit(quantity),
        each=each,
        instances=instances,
        predicted=each * instances,
    )
