"""Runs that no package here measures, predicted next to the measured ones of a sweep."""

from collections.abc import Mapping

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.predict.predict import KEYS, predict
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
    predicted = _predicted(point)
    parts = peak_parts(predicted)
    if parts.is_empty() or "optimizer" in parts["phase"]:
        return parts
    sums = dict(predicted.group_by("quantity").agg(pl.col("predicted").sum()).iter_rows())
    values = {group: sums[name] for group, name in STATES.items()}
    kept = pl.DataFrame(
        {"group": [*values], "value": [*values.values()], "phase": "optimizer",
         "peak": sum(values.values()), "worst": parts["worst"][0]}
    )  # fmt: skip
    return pl.concat([parts, kept], how="diagonal_relaxed")


def parts_of_model(points: pl.DataFrame, a: Architecture) -> pl.DataFrame:
    """Return the parts of the largest peak of each of these points for another architecture."""
    fields = {name: pl.lit(value, points.schema[name]) for name, value in a.model_dump().items()}
    changed = points.with_columns(**fields, architecture=pl.lit(a.digest()))
    return peak_parts(_predicted(changed)).filter(pl.col("peak") == pl.col("worst"))


def _predicted(points: pl.DataFrame) -> pl.DataFrame:
    """Return what is known of the parts of peaks, as if it were measured."""
    table = predict(points, sorted(NEEDS)).drop_nulls("predicted")
    of_point = points.select(*KEYS, "point", "label")
    return table.join(of_point, on=KEYS).with_columns(measured=pl.col("predicted"))
