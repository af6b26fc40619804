"""A sweep written out: the table of its points, and what the report says about it."""

import polars as pl

from modelbudget.expand import Expanded
from modelbudget.sweep import Sweep


def points_table(expanded: Expanded) -> pl.DataFrame:
    """Columns: point, label, base, family, architecture and run (content digests), transformers
    (the class that is the same model, if there is one), then the fields of both.

    Fields that a point's family does not have are null.
    """
    rows = [
        {
            "point": point.point,
            "label": point.label,
            "base": point.base,
            "family": point.architecture.name(),
            "architecture": point.architecture.digest(),
            "transformers": point.transformers,
            "run": point.run.digest(),
            **point.architecture.model_dump(),
            **point.run.model_dump(),
        }
        for point in expanded.points
    ]
    return pl.from_dicts(rows, infer_schema_length=None)


def summary(expanded: Expanded) -> dict:
    """What the sweep file said, resolved: for the report, and for whoever reads the results."""
    counts = {"points": len(expanded.points), "dropped": expanded.dropped}
    return said(expanded.name, expanded.sweep) | counts


def said(name: str, sweep: Sweep) -> dict:
    """What a sweep file says, with ranges written out."""
    return {
        "name": name,
        "title": sweep.title,
        "question": sweep.question,
        "order": sweep.order,
        "headline": sweep.headline,
        "base": sweep.base,
        "fixed": sweep.fixed,
        "axes": sweep.axes(),
        "derive": sweep.derive,
        "constraints": sweep.constraints,
        "measure": sweep.measure.model_dump(),
    }
