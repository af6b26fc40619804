"""Streaming summary (min, max, geometric mean) of predictions along each axis."""

from collections.abc import Sequence

import polars as pl

from modelbudget.predict.streamed import OF_GROUP

DIGITS = 9
"""Significant digits of a mean: few enough not to depend on the order of summation."""


class AxisSummary:
    """Summary by value of each axis, in memory that does not grow with the number of rows.

    Number of predictions, their least, largest and typical totals, and the mean share of each group
    of components.
    """

    def __init__(self, axes: dict[str, list], quantities: Sequence[str], groups: list[str]):
        self.axes, self.quantities, self.groups = axes, quantities, groups
        self.rows = 0
        self._sums: dict[str, pl.DataFrame] = {}
        total = pl.col(quantities)
        shares = [(pl.col(OF_GROUP + g) / pl.col("parameters")).alias(f"share {g}") for g in groups]
        self._terms = [total.cast(pl.Float64).log().name.prefix("log "), *shares]
        self._of_rows = [
            total.count().name.prefix("n "),
            total.min().name.prefix("least "),
            total.max().name.prefix("most "),
            pl.col("^(log|share) .*$").sum(),
        ]
        self._of_sums = [
            pl.col("^(n|log|share) .*$").sum(),
            pl.col("^least .*$").min(),
            pl.col("^most .*$").max(),
        ]

    def add(self, rows: pl.DataFrame) -> None:
        """Add one table of `streamed.frames`."""
        self.rows += rows.height
        rows = rows.with_columns(self._terms)
        for axis in self.axes:
            here = rows.group_by(axis).agg(self._of_rows)
            before = [self._sums[axis]] if axis in self._sums else []
            both = pl.concat([*before, here], how="diagonal")
            self._sums[axis] = both.group_by(axis).agg(self._of_sums)

    def totals(self) -> pl.DataFrame:
        """Return a table of totals.

        Columns: axis, index (of the value on the axis), value (as text), quantity, models, least,
        typical (geometric mean), most.
        """
        return pl.concat(
            self._along(axis).select(
                "axis", "index", "value",
                quantity=pl.lit(quantity),
                models=f"n {quantity}",
                least=f"least {quantity}",
                typical=(pl.col(f"log {quantity}") / pl.col(f"n {quantity}"))
                .exp().round_sig_figs(DIGITS),
                most=f"most {quantity}",
            )
            for axis in self.axes
            for quantity in self.quantities
        )  # fmt: skip

    def shares(self) -> pl.DataFrame:
        """Return a table of shares of parameters.

        Columns: axis, index, value, group, share (mean over the models).
        """
        columns = ["axis", "index", "value"]
        share = (pl.col(f"share {g}") / pl.col("n parameters") for g in self.groups)
        tables = [
            self._along(axis).select(*columns, group=pl.lit(group), share=mean.round(DIGITS))
            for group, mean in zip(self.groups, share, strict=True)
            for axis in self.axes
        ]
        empty = dict.fromkeys((*columns, "group"), pl.String) | {"share": pl.Float64}
        return pl.concat(tables) if tables else pl.DataFrame(schema=empty)

    def _along(self, axis: str) -> pl.DataFrame:
        values = self.axes[axis]
        places = pl.DataFrame({axis: values, "index": range(len(values))})
        text = pl.col(axis).cast(pl.String).alias("value")
        return (
            places.join(self._sums[axis], on=axis)
            .with_columns(text, axis=pl.lit(axis))
            .sort("index")
        )
