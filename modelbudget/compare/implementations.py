"""One model in one run by implementation: formula, our module, and the `transformers` class."""

from typing import NamedTuple

import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.huggingface.components import component_of_class

ABOUT_CLASS = ("class", "built_from", "attention", "replaced", "method", "refusal")
"""Columns of the traces that are the same for all parts of a class."""


def by_component(traces: pl.DataFrame) -> pl.DataFrame:
    """Return the traced values by phase and by our component, where one corresponds to a part.

    Columns: point, component, quantity, reference, class, attention, built_from.
    """
    traces = traces.drop_nulls("reference")
    ours = {path: component_of_class(path) for path in traces["component"].unique()}
    named = pl.col("component").replace_strict(ours, default=None, return_dtype=pl.String)
    return (
        traces.with_columns(component=pl.when(_is_peak(traces)).then("component").otherwise(named))
        .drop_nulls("component")
        .group_by("point", "component", "quantity", maintain_order=True)
        .agg(pl.col("reference").sum(), pl.first("class", "attention", "built_from"))
    )


def implementations(
    points: pl.DataFrame, comparison: pl.DataFrame, traces: pl.DataFrame
) -> pl.DataFrame:
    """Return one row for each point × quantity, and for peaks × phase, that a class has.

    Columns: point, label, quantity, phase (null for sums of all components), formula, module,
    reference, ratio (reference / module, or / formula where no module was measured), class,
    built_from, attention, replaced, method (the device of the class), refusal (the reason without a
    value).
    Formula and module are null where they have no value for each component.
    """
    phase = pl.when(_is_peak(comparison)).then("component").alias("phase")
    ours = comparison.group_by("point", "quantity", phase, maintain_order=True).agg(
        formula=_sum("predicted"), module=_sum("measured")
    )
    phase = pl.when(_is_peak(traces)).then("component").alias("phase")
    of_class = traces.group_by("point", "quantity", phase, maintain_order=True).agg(
        _sum("reference").alias("reference"), pl.first(*ABOUT_CLASS)
    )
    found = (
        points.select("point", "label")
        .join(of_class, on="point", maintain_order="left")
        .join(ours, on=["point", "quantity", "phase"], how="left", nulls_equal=True,
              maintain_order="left")
    )  # fmt: skip
    return found.select(
        "point", "label", "quantity", "phase", "formula", "module", "reference",
        _ratio().alias("ratio"), *ABOUT_CLASS,
    )  # fmt: skip


def peaks(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × quantity; of a peak, the largest phase of each column.

    `phase` is that of the class.
    """
    highest = pl.col("reference").arg_max()
    values = [pl.col(name).max() for name in ("formula", "module", "reference")]
    found = table.group_by("point", "label", "quantity", maintain_order=True).agg(
        pl.col("phase").get(highest.fill_null(0)), *values, pl.first(*ABOUT_CLASS)
    )
    return found.with_columns(ratio=_ratio()).select(table.columns)


class Witnesses(NamedTuple):
    """Numbers of models for which each implementation has a value of a quantity."""

    quantity: str
    formula: int
    module: int
    reference: int


def witnesses(table: pl.DataFrame) -> list[Witnesses]:
    """Count the models (points) by quantity and implementation, in the order of the table."""
    counts = table.group_by("quantity", maintain_order=True).agg(
        pl.col("point").filter(pl.col(name).is_not_null()).n_unique().alias(name)
        for name in ("formula", "module", "reference")
    )
    return [Witnesses(*row) for row in counts.rows()]


def _ratio() -> pl.Expr:
    return pl.col("reference") / pl.coalesce("module", "formula")


def _is_peak(table: pl.DataFrame) -> pl.Expr:
    names = [name for name in table["quantity"].unique() if is_peak(name)]
    return pl.col("quantity").is_in(names)


def _sum(name: str) -> pl.Expr:
    """Return the sum over components; null where all are null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())
