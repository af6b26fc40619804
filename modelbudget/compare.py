"""Where the two witnesses meet: predicted beside measured, component by component."""

import polars as pl

from modelbudget.families import families

KEYS = ["architecture", "component", "quantity"]


def compare(
    points: pl.DataFrame, predicted: pl.DataFrame, measured: pl.DataFrame, axes: list[str]
) -> pl.DataFrame:
    """One row for each point × component × quantity that either witness knows.

    Columns: point, label, the swept fields, component, quantity, each, instances, predicted,
    measured, difference (measured − predicted; a missing side counts as 0), agrees, method,
    shared_with, formula. A component that only one side has does not agree. A family without a
    formula (`formula` is false) has neither prediction, difference nor agreement.
    """
    formula = pl.col("family").is_in([n for n, kind in families().items() if kind.has_formula])
    both = predicted.join(measured, on=KEYS, how="full", coalesce=True)
    missing_on_one_side = pl.col("predicted").is_null() ^ pl.col("measured").is_null()
    difference = pl.col("measured").fill_null(0) - pl.col("predicted").fill_null(0)
    # A tensor that another component owns is measured as 0, and formulas leave zeros out.
    owned_elsewhere = pl.col("predicted").is_null() & (pl.col("measured") == 0)
    both = both.with_columns(
        pl.when(owned_elsewhere).then(0).otherwise(pl.col("predicted")).alias("predicted"),
        difference=difference,
        agrees=(difference == 0) & (~missing_on_one_side | owned_elsewhere),
    )
    method = measured.select("architecture", "method").unique()
    both = both.drop("method").join(method, on="architecture", how="left")
    return (
        points.select("point", "label", "architecture", *axes, formula=formula)
        .join(both, on="architecture", how="left")
        .drop("architecture")
        .with_columns(pl.when("formula").then(pl.col("predicted", "difference", "agrees")))
        .select(
            "point", "label", *axes, "component", "quantity", "each", "instances",
            "predicted", "measured", "difference", "agrees", "method", "shared_with", "formula",
        )
        .sort("point", "component", "quantity")
    )  # fmt: skip


def verdict(comparison: pl.DataFrame) -> dict[str, int]:
    """How many components of how many agree, over how many points; without a formula, nothing
    is compared.
    """
    compared = comparison.filter("formula")
    return {
        "points": comparison["point"].n_unique(),
        "compared": compared.height,
        "agreed": int(compared["agrees"].sum()),
        "points_without_formula": comparison.filter(~pl.col("formula"))["point"].n_unique(),
    }
