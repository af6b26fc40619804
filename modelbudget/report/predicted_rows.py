"""Runs that no package here measures, predicted next to the measured ones of a sweep."""

from collections.abc import Mapping

import polars as pl

from modelbudget.predict.predict import predict
from modelbudget.report.charts.peak import NEEDS, peak_parts

STATES = {
    "parameters": "parameter_bytes",
    "optimizer states": "optimizer_bytes",
    "gradients": "gradient_bytes",
}


def predicted_parts(points: pl.DataFrame, settings: Mapping[str, object]) -> pl.DataFrame:
    """Return the parts of the peaks of the first of these points with other settings.

    Columns as those of `peak_parts`; no rows without a formula. The phase of an optimizer whose
    temporary tensors are not known has none.
    """
    point = points.head(1).with_columns(
        **{name: pl.lit(value) for name, value in settings.items()}, run=pl.lit("predicted alone")
    )
    predicted = predict(point, sorted(NEEDS)).with_columns(
        point=pl.lit(""), label=pl.lit(""), measured=pl.col("predicted")
    )
    parts = peak_parts(predicted.drop_nulls("measured"))
    if parts.is_empty() or "optimizer" in parts["phase"]:
        return parts
    sums = dict(predicted.group_by("quantity").agg(pl.col("predicted").sum()).iter_rows())
    values = {group: sums[name] for group, name in STATES.items()}
    kept = pl.DataFrame(
        {"group": [*values], "value": [*values.values()], "phase": "optimizer",
         "peak": sum(values.values()), "worst": parts["worst"][0]}
    )  # fmt: skip
    return pl.concat([parts, kept], how="diagonal_relaxed")
