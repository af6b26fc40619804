"""The points of a sweep as a table, which is written once and read by all later jobs."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families import families
from modelbudget.sweeps.point import Point


def points_table(points: Iterable[Point]) -> pl.DataFrame:
    """Return points as a table.

    Columns: point, label, base, family, architecture and run (content digests), transformers (the
    class that is the same model, if there is one), config_json (the keys of the config.json that
    its base was read from, as JSON), then the fields of both. Fields that a point's family does not
    have are null.
    """
    rows = [
        {
            "point": point.point,
            "label": point.label,
            "base": point.base,
            "family": point.architecture.name(),
            "architecture": point.architecture.digest(),
            "transformers": point.transformers,
            "config_json": point.config,
            "run": point.run.digest(),
            **point.architecture.model_dump(),
            **point.run.model_dump(),
        }
        for point in points
    ]
    return pl.from_dicts(rows, infer_schema_length=None)


AnyRecord = TypeVar("AnyRecord", bound=Record)


def rows(points: pl.DataFrame) -> list[Point]:
    family_by_name = families()
    return [
        Point(
            row["point"],
            row["label"],
            row["base"],
            *model_of(family_by_name[row["family"]], row),
            row["transformers"],
            row["config_json"],
        )
        for row in points.to_dicts()
    ]


def model_of(
    family: type[Architecture], fields: Mapping[str, Any]
) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run of a row, whose switches may be 1 and 0.

    The fields were validated when the points were made.
    """
    return _record(family, fields), _record(RunConfig, fields)


def _record(schema: type[AnyRecord], fields: Mapping[str, Any]) -> AnyRecord:
    return schema.model_construct(
        None,
        **{
            name: bool(fields[name]) if field.annotation is bool else fields[name]
            for name, field in schema.model_fields.items()
        },
    )
