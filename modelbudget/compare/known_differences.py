"""Differences between `transformers` classes and our models that are known by number and reason.

`left_out` of the files of `configs/huggingface/model_types/` has them.
"""

from typing import NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.common.expressions import Expression
from modelbudget.huggingface.classes import translations
from modelbudget.sweeps.points_table import rows


class KnownDifference(NamedTuple):
    """Parameters that a class has in addition to ours (if negative, fewer), and why."""

    parameters: int
    reason: str

    @property
    def text(self) -> str:
        """The number and the reason in one line."""
        return f"{self.parameters:+,}: {self.reason}"


def known_difference(kind: str | None, a: Architecture) -> KnownDifference | None:
    """Return the known difference of the class `kind` of an architecture; None if it is equal."""
    left_out = translations()[kind].left_out if kind else None
    if left_out is None:
        return None
    parameters = int(Expression(left_out.parameters)(a.model_dump()))
    return KnownDifference(-parameters, left_out.reason) if parameters else None


def known_differences(points: pl.DataFrame) -> pl.DataFrame:
    """Return the points whose class differs: point, known (parameters), known_difference (text)."""
    kinds = [kind for kind, one in translations().items() if one.left_out]
    different = points.filter(pl.col("transformers").cast(pl.String).is_in(kinds))
    found = [
        (row.point, known.parameters, known.text)
        for row in rows(different)
        if (known := known_difference(row.transformers, row.architecture))
    ]
    schema = {"point": pl.String, "known": pl.Int64, "known_difference": pl.String}
    return pl.DataFrame(found, schema, orient="row")
