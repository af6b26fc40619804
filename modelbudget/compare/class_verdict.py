"""The third witness: values of `transformers` classes beside ours, and their verdicts.

A count of parameters is about the architecture: the class must have it, whatever the
implementation, but for a difference that is known by number and reason. All other values are about
an implementation: they must be those of the class where the run's `implementation` is transformers.
A module of our own is not wrong because a class holds more memory.
"""

import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.compare.uncompared import REASON
from modelbudget.huggingface.classes import known_difference, translations
from modelbudget.huggingface.components import components_of_class
from modelbudget.measurement.reference.cached_classes import OF_POINT, TRACED
from modelbudget.sweeps.points_table import rows

COUNT, WHOLE = "parameters", "whole class"
REFERENCE = {
    "reference": pl.Int64,
    "class_total": pl.Int64,
    "reference_agrees": pl.Boolean,
    "known_difference": pl.String,
    "class": pl.String,
    "built_from": pl.String,
    "attention": pl.String,
}
"""Columns of a comparison about the class."""
ABOUT_CLASS = ("class", "built_from", "attention")


def values_of_classes(
    traces: pl.DataFrame | None, counts: pl.DataFrame | None
) -> pl.DataFrame | None:
    """Return the traces, and the counts of classes that were not traced, as one table of traces."""
    if counts is None:
        return traces
    counted = counts.select(
        "point", "built_from", "class", "refusal", reference=COUNT,
        component=pl.when(pl.col(COUNT).is_not_null()).then(pl.lit(WHOLE)),
        quantity=pl.lit(COUNT), method=pl.lit("meta"),
    )  # fmt: skip
    if traces is not None:
        is_traced_count = (pl.col("quantity") == COUNT) & pl.col("reference").is_not_null()
        counted = counted.join(traces.filter(is_traced_count), on="point", how="anti")
        # A reason why parameters were not traced is none if they were counted.
        traces = traces.join(counted, on=["point", "quantity"], how="anti")
    empty = pl.DataFrame(schema=dict.fromkeys(OF_POINT, pl.String) | TRACED)
    return pl.concat([empty if traces is None else traces, counted], how="diagonal")


def of_phases(table: pl.DataFrame) -> pl.Expr:
    """Whether a row is of a peak, whose phases do not add up."""
    names = [name for name in table["quantity"].unique() if name and is_peak(name)]
    return pl.col("quantity").is_in(names)


def by_component(values: pl.DataFrame) -> pl.DataFrame:
    """Return values of classes by phase and by each of our components that a part may be.

    Columns: point, component, quantity, reference.
    """
    values = values.drop_nulls("reference")
    ours = {path: [*components_of_class(path)] for path in values["component"].unique()}
    names = pl.col("component").replace_strict(ours, default=None, return_dtype=pl.List(pl.String))
    is_phase = of_phases(values)
    return (
        values.with_columns(
            component=pl.when(is_phase).then(pl.concat_list("component")).otherwise(names)
        )
        .explode("component")
        .drop_nulls("component")
        .group_by("point", "component", "quantity", maintain_order=True)
        .agg(pl.col("reference").sum())
    )


def with_classes(
    comparison: pl.DataFrame, points: pl.DataFrame, values: pl.DataFrame | None
) -> pl.DataFrame:
    """Add the columns `REFERENCE` to a comparison: values of classes, and whether they agree.

    `reference` is the value of the same phase, or of the part of the class that corresponds to the
    component. `class_total` is that of all its parts; a class may divide it otherwise, so that the
    verdict is about the sum, the same for all components. It is null where no value has to agree.
    """
    if values is None:
        return comparison.with_columns(
            pl.lit(None, dtype).alias(n) for n, dtype in REFERENCE.items()
        )
    totals = (
        values.drop_nulls("reference")
        .group_by("point", "quantity")
        .agg(pl.col("reference").sum().alias("class_total"), pl.first(*ABOUT_CLASS))
        .with_columns(pl.when(~of_phases(values)).then("class_total"))
    )
    known = _known_differences(points).with_columns(quantity=pl.lit(COUNT))
    of_class = points.select("point", of_class=pl.col("implementation") == TRANSFORMERS)
    table = (
        comparison.join(by_component(values), on=["point", "component", "quantity"], how="left")
        .join(totals, on=["point", "quantity"], how="left")
        .join(_ours(comparison), on=["point", "quantity"], how="left")
        .join(known, on=["point", "quantity"], how="left")
        .join(of_class, on="point", how="left")
    )
    of_phase = pl.col("reference") == pl.coalesce("predicted", "measured")
    of_sum = pl.col("class_total") - pl.col("ours") == pl.col("known").fill_null(0)
    is_judged = pl.col("of_class") & pl.col(REASON).is_null() | (pl.col("quantity") == COUNT)
    verdict = pl.when(of_phases(comparison)).then(of_phase).otherwise(of_sum)
    return (
        table.with_columns(reference_agrees=pl.when(is_judged).then(verdict))
        .with_columns(pl.when("reference_agrees").then("known_difference"))
        .select(*comparison.columns, *REFERENCE)
    )


def _ours(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return the sum of each quantity of a point: predicted, or measured without a formula."""
    is_predicted = pl.col("prediction").is_not_null().all()
    return comparison.group_by("point", "quantity").agg(
        ours=pl.when(is_predicted).then(sum_or_null("predicted")).otherwise(sum_or_null("measured"))
    )


def sum_or_null(name: str) -> pl.Expr:
    """Return the sum over components; null where all are null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())


def judged(comparison: pl.DataFrame) -> pl.DataFrame:
    """Return all values of classes that must agree: sums over components, and phases of peaks.

    Columns: point, label, quantity, component (the phase; null for sums), predicted, measured,
    reference, agrees, and those about the class.
    """
    phase = pl.when(of_phases(comparison)).then("component").alias("component")
    return (
        comparison.filter(pl.col("reference_agrees").is_not_null())
        .group_by("point", "label", "quantity", phase, maintain_order=True)
        .agg(
            *(sum_or_null(name).alias(name) for name in ("predicted", "measured")),
            pl.coalesce("class_total", "reference").first().alias("reference"),
            pl.first("reference_agrees").alias("agrees"),
            pl.first("known_difference", *ABOUT_CLASS),
        )
    )


def _known_differences(points: pl.DataFrame) -> pl.DataFrame:
    """Return the points whose class differs: point, known (parameters), known_difference (text)."""
    classes = [name for name, translation in translations().items() if translation.left_out]
    different = points.filter(pl.col("transformers").cast(pl.String).is_in(classes))
    differences = [
        (row.point, known.parameters, known.text)
        for row in rows(different)
        if (known := known_difference(row.transformers, row.architecture))
    ]
    schema = {"point": pl.String, "known": pl.Int64, "known_difference": pl.String}
    return pl.DataFrame(differences, schema, orient="row")
