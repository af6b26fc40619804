"""Quantities of a class of `transformers` that our formulas and modules are not compared with.

Numbers that were not compared under a class's name are not shown under it, and the reason is.
"""

from collections.abc import Sequence

import polars as pl

from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.sweeps.compared import not_compared_at
from modelbudget.sweeps.points_table import rows

REASON = "not_compared"
"""Column with the reason."""
HIDDEN = (
    "each", "instances", "predicted", "measured", "difference", "percent", "agrees",
    "shared_with", "prediction", "failure",
)  # fmt: skip


def reasons(points: pl.DataFrame, quantities: Sequence[str]) -> pl.DataFrame:
    """Return the quantities of points that were not compared: point, quantity and `REASON`."""
    not_compared = [
        (row.point, quantity, why)
        for row in rows(points.filter(implementation=TRANSFORMERS))
        for quantity in quantities
        if (why := not_compared_at(quantity, row.transformers, row.config, *row.model))
    ]
    columns = "point", "quantity", REASON
    return pl.DataFrame(not_compared, dict.fromkeys(columns, pl.String), orient="row")


def hidden(comparison: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Add the column `REASON` to a comparison, and empty `HIDDEN` where there is one."""
    quantities = comparison["quantity"].drop_nulls().unique(maintain_order=True).to_list()
    table = comparison.join(reasons(points, quantities), on=["point", "quantity"], how="left")
    is_shown = pl.col(REASON).is_null()
    return table.with_columns(pl.when(is_shown).then(pl.col(name)).alias(name) for name in HIDDEN)


def without_empty(comparison: pl.DataFrame) -> pl.DataFrame:
    """Leave of rows with a `REASON` those with a value of the class, or one for the reason."""
    is_first = pl.int_range(pl.len()).over("point", "quantity") == 0
    has_class = pl.col("reference").is_not_null()
    alone = is_first & ~has_class.any().over("point", "quantity")
    return comparison.filter(pl.col(REASON).is_null() | has_class | alone)


def n_uncompared(comparison: pl.DataFrame) -> int:
    """Count the quantities of points with a `REASON`."""
    return comparison.filter(pl.col(REASON).is_not_null()).n_unique(["point", "quantity"])


def lines(sweep: str, comparison: pl.DataFrame) -> list[str]:
    """Format the reasons for a terminal: `sweep: quantities: not compared: reason`."""
    by_reason = quantities_by_reason(comparison, REASON).items()
    return [f"{sweep}: {', '.join(names)}: not shown: {reason}" for reason, names in by_reason]


def quantities_by_reason(comparison: pl.DataFrame, column: str) -> dict[str, list[str]]:
    reasons = comparison.drop_nulls(column).group_by(column, maintain_order=True)
    return dict(reasons.agg(pl.col("quantity").unique(maintain_order=True)).iter_rows())
