"""Counts of `transformers` classes as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from modelbudget.measure.reference.witness import Witness

SCHEMA = {
    "architecture": pl.String,
    "class": pl.String,
    "parameters": pl.Int64,
    "buffers": pl.Int64,
    "refusal": pl.String,
}


def witness_table(found: list[Witness]) -> pl.DataFrame:
    """Return a row for each architecture and class, in the order given; columns as `Witness`."""
    rows = [(w.architecture, w.kind, w.parameters, w.buffers, w.refusal) for w in found]
    return pl.DataFrame(rows, SCHEMA, orient="row")
