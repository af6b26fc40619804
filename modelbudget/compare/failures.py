"""Failed measurements, grouped by reason."""

from typing import NamedTuple

import polars as pl

from modelbudget.common.workers import for_readers
from modelbudget.compare.comparison import is_failed

FEW = 3
"""Models that are named; of the others, the number is given."""


class Failures(NamedTuple):
    """One reason with the labels of the models concerned and their quantities."""

    labels: list[str]
    quantities: list[str]
    reason: str

    @property
    def models(self) -> str:
        """The first labels and the number of the others. Labels may contain commas."""
        more = f" and {len(self.labels) - FEW:,} more" if len(self.labels) > FEW else ""
        return "; ".join(self.labels[:FEW]) + more


def by_reason(comparison: pl.DataFrame) -> list[Failures]:
    """Return the reasons in a comparison, those of most models first.

    Includes both failures and measurements for which there was too little memory.
    """
    of_points = (
        comparison.filter(pl.col("failure").is_not_null())
        .group_by("point", "label", "failure", maintain_order=True)
        .agg(pl.col("quantity").unique(maintain_order=True))
    )
    rows = (
        of_points.group_by("quantity", "failure", maintain_order=True)
        .agg("label", n=pl.len())
        .sort("n", descending=True, maintain_order=True)
    )
    failures = rows.select("label", "quantity", "failure").rows()
    return [Failures(labels, names, for_readers(why)) for labels, names, why in failures]


def lines(sweep: str, comparison: pl.DataFrame) -> list[str]:
    """Format failures for a terminal: `sweep: labels: quantities: reason`."""
    return [
        f"{sweep}: {failure.models}: {', '.join(failure.quantities)}: {failure.reason}"
        for failure in by_reason(comparison.filter(is_failed()))
    ]
