"""Closed formulas over a table of points, all rows at once. Knows no module and no torch."""

from collections.abc import Iterator

import polars as pl

from modelbudget.architecture import Architecture
from modelbudget.expand import BYTES
from modelbudget.families import families
from modelbudget.readings import columns
from modelbudget.terms import Term

SCHEMA = {
    "architecture": pl.String,
    "component": pl.String,
    "quantity": pl.String,
    "each": pl.Int64,
    "instances": pl.Int64,
    "predicted": pl.Int64,
}


def predict(points: pl.DataFrame, dtype: str, quantities: list[str]) -> pl.DataFrame:
    """One row for each architecture × component × quantity that is not zero.

    Columns: architecture, component, quantity, each (value of one instance), instances, predicted
    (each × instances). Units: a count for `parameters`, bytes for `parameter_bytes`.
    """
    distinct = points.unique("architecture", keep="first", maintain_order=True)
    unit = {"parameters": 1, "parameter_bytes": BYTES[dtype]}
    parts = [
        _rows(rows.lazy(), component, quantity, term, unit[quantity])
        for family, words, rows in _alike(distinct)
        for component, term in family.parameters(columns.namespace(family, words)).items()
        for quantity in quantities
    ]
    if not parts:
        return pl.DataFrame(schema=SCHEMA)
    table = pl.concat(pl.collect_all(parts))
    return table.filter(pl.col("predicted") != 0).sort("architecture", "component", "quantity")


def _alike(points: pl.DataFrame) -> Iterator[tuple[type[Architecture], dict, pl.DataFrame]]:
    """Points of one family with the same words: one formula serves them all."""
    for (name,), rows in points.partition_by("family", as_dict=True).items():
        family = families()[name]
        words = family.words()
        if not words:
            yield family, {}, rows
            continue
        for values, same in rows.partition_by(words, as_dict=True).items():
            yield family, dict(zip(words, values, strict=True)), same


def _rows(rows: pl.LazyFrame, component: str, quantity: str, term: Term, unit: int) -> pl.LazyFrame:
    each = pl.lit(unit, pl.Int64) * term.each
    instances = pl.lit(1, pl.Int64) * term.instances
    return rows.select(
        "architecture",
        component=pl.lit(component),
        quantity=pl.lit(quantity),
        each=each,
        instances=instances,
        predicted=each * instances,
    )
