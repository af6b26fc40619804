"""Formula, module and class of `transformers` side by side: a row for each model and quantity."""

import polars as pl

from modelbudget.compare.class_verdict import of_phases, sum_or_null

VERDICTS = ("module_agrees", "reference_agrees", "known_difference")
OF_TRACE = ("class", "built_from", "attention", "replaced", "method", "refusal")
"""Columns of the traces that are the same for all parts of a class."""


def implementations(
    points: pl.DataFrame, comparison: pl.DataFrame, traces: pl.DataFrame
) -> pl.DataFrame:
    """Return one row for each point × quantity, and for peaks × phase, that a class has.

    Columns: point, label, quantity, phase (null for sums of all components), formula, module,
    reference, ratio (reference / module, or / formula where no module was measured), module_agrees
    and reference_agrees (null without a verdict), known_difference, class, built_from, attention,
    replaced, method (the device of the class), refusal (the reason without a value).
    Formula and module are null where they have no value for each component.
    """
    phase = pl.when(of_phases(comparison)).then("component").alias("phase")
    ours = comparison.group_by("point", "quantity", phase, maintain_order=True).agg(
        formula=sum_or_null("predicted"),
        module=sum_or_null("measured"),
        module_agrees=_all("agrees"),
        reference_agrees=pl.first("reference_agrees"),
        known_difference=pl.first("known_difference"),
    )
    phase = pl.when(of_phases(traces)).then("component").alias("phase")
    of_class = traces.group_by("point", "quantity", phase, maintain_order=True).agg(
        sum_or_null("reference").alias("reference"), pl.first(*OF_TRACE)
    )
    rows = (
        points.select("point", "label")
        .join(of_class, on="point", maintain_order="left")
        .join(ours, on=["point", "quantity", "phase"], how="left", nulls_equal=True,
              maintain_order="left")
    )  # fmt: skip
    return rows.select(
        "point", "label", "quantity", "phase", "formula", "module", "reference",
        _ratio().alias("ratio"), *VERDICTS, *OF_TRACE,
    )  # fmt: skip


def peaks(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point × quantity; of a peak, the largest phase of each column.

    `phase` is that of the class.
    """
    highest = pl.col("reference").arg_max()
    values = [pl.col(name).max() for name in ("formula", "module", "reference")]
    largest = table.group_by("point", "label", "quantity", maintain_order=True).agg(
        pl.col("phase").get(highest.fill_null(0)),
        *values,
        *(_all(name).alias(name) for name in ("module_agrees", "reference_agrees")),
        pl.first("known_difference", *OF_TRACE),
    )
    return largest.with_columns(ratio=_ratio()).select(table.columns)


def _ratio() -> pl.Expr:
    return pl.col("reference") / pl.coalesce("module", "formula")


def _all(name: str) -> pl.Expr:
    """Return whether all verdicts that there are agree; null without any."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).all())
