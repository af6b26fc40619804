"""What could not be measured, by reason."""

from typing import NamedTuple

import polars as pl

from modelbudget.compare.comparison import is_failed

FEW = 3
"""Models that are named; of more, the number."""


class Failures(NamedTuple):
    """One reason: the labels of the models that it concerns, and their quantities."""

    labels: list[str]
    quantities: list[str]
    reason: str

    @property
    def models(self) -> str:
        """The first labels, which may hold commas, and how many more there are."""
        more = f" and {len(self.labels) - FEW:,} more" if len(self.labels) > FEW else ""
        return "; ".join(self.labels[:FEW]) + more


def by_reason(comparison: pl.DataFrame) -> list[Failures]:
    """Of a sweep's comparison, the reasons that concern most models first; both kinds: what failed
    and what found no room.
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
    found = rows.select("label", "quantity", "failure").rows()
    return [Failures(*row) for row in found]


def lines(sweep: str, comparison: pl.DataFrame) -> list[str]:
    """What failed, for a terminal: `sweep: labels: quantities: reason`."""
    return [
        f"{sweep}: {one.models}: {', '.join(one.quantities)}: {one.reason}"
        for one in by_reason(comparison.filter(is_failed()))
    ]
