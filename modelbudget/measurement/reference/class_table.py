"""Counts and traces of `transformers` classes as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import polars as pl

from modelbudget.common.workers import Failure

if TYPE_CHECKING:
    from modelbudget.measurement.reference.class_counts import Witness
    from modelbudget.measurement.reference.class_trace import Traced

OF_POINT = ("point", "built_from")
"""Columns about a point: its number, and whose keys its class is built from."""
COUNTED = {"class": pl.String, "parameters": pl.Int64, "buffers": pl.Int64, "refusal": pl.String}

TRACED = {
    "component": pl.String, "quantity": pl.String, "reference": pl.Int64, "class": pl.String,
    "attention": pl.String, "replaced": pl.String, "method": pl.String, "refusal": pl.String,
}  # fmt: skip
"""`component` is one of the class, or a phase; null where there is no value, with the `refusal`."""


def witness_table(counts: list[Witness]) -> pl.DataFrame:
    """Return a row for each class, in the order given; columns as `Witness`."""
    rows = [(w.class_name, w.parameters, w.buffers, w.refusal) for w in counts]
    return pl.DataFrame(rows, COUNTED, orient="row")


def refused_count(class_name: str, reason: str) -> pl.DataFrame:
    """Return the row of a class that cannot be counted, with the reason."""
    return pl.DataFrame([(class_name, None, None, reason)], COUNTED, orient="row")


def traced_table(
    class_name: str, quantities: Iterable[str], outcome: Traced | Failure
) -> pl.DataFrame:
    """Return a row for each component or phase of each quantity, or one with the reason."""
    if isinstance(outcome, Failure):
        return refused_table(class_name, dict.fromkeys(quantities, outcome.reason))
    how = {"class": class_name, "attention": outcome.attention, "replaced": outcome.replaced,
           "method": outcome.method}  # fmt: skip
    rows = [
        {"component": component, "quantity": quantity, "reference": value, **how}
        for quantity, values in outcome.values.items()
        for component, value in values.items()
    ]
    traced = pl.from_dicts(rows, TRACED)
    return pl.concat([traced, refused_table(class_name, outcome.missing)])


def refused_table(class_name: str, reasons: Mapping[str, str]) -> pl.DataFrame:
    """Return a row for each quantity that a class cannot have, with the reason."""
    rows = [{"quantity": q, "refusal": why, "class": class_name} for q, why in reasons.items()]
    return pl.from_dicts(rows, TRACED)
