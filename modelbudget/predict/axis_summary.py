"""Streaming summary of predictions along each axis: minimum and maximum, and a slice."""

from collections.abc import Sequence

import polars as pl

from modelbudget.predict.predicted_grids import OF_GROUP


class AxisSummary:
    """Summary by value of each axis, in memory that does not grow with the number of rows.

    Over all values of the other axes: number of predictions, their least and largest totals. And
    the slice along the axis: the models that have the middle value of every other axis.
    """

    def __init__(self, axes: dict[str, list], quantities: Sequence[str], groups: list[str]):
        self.axes, self.quantities, self.groups = axes, quantities, groups
        self.middle = {axis: values[len(values) // 2] for axis, values in axes.items()}
        self.rows = 0
        self._ends: dict[str, pl.DataFrame] = {}
        self._slices: dict[str, list[pl.DataFrame]] = {axis: [] for axis in axes}
        total = pl.col(quantities)
        self._of_rows = [
            total.count().name.prefix("n "),
            total.min().name.prefix("least "),
            total.max().name.prefix("most "),
        ]
        self._of_ends = [
            pl.col("^n .*$").sum(),
            pl.col("^least .*$").min(),
            pl.col("^most .*$").max(),
        ]

    def add(self, rows: pl.DataFrame) -> None:
        """Add one table of `predicted_grids.frames`."""
        self.rows += rows.height
        for axis in self.axes:
            here = rows.group_by(axis).agg(self._of_rows)
            before = [self._ends[axis]] if axis in self._ends else []
            both = pl.concat([*before, here], how="diagonal")
            self._ends[axis] = both.group_by(axis).agg(self._of_ends)
            at_middle = [
                pl.col(name) == value for name, value in self.middle.items() if name != axis
            ]
            groups = [OF_GROUP + group for group in self.groups]
            self._slices[axis].append(
                rows.filter(*at_middle).select(axis, *self.quantities, *groups)
            )

    def totals(self) -> pl.DataFrame:
        """Return a table of totals.

        Columns: axis, index (of the value on the axis), value (as text), is_middle (of the axis),
        quantity, models, least, most, slice (the total of the model on the slice, null if
        constraints drop it).
        """
        return pl.concat(
            self._along(axis).select(
                "axis", "index", "value", "is_middle",
                quantity=pl.lit(quantity),
                models=f"n {quantity}",
                least=f"least {quantity}",
                most=f"most {quantity}",
                slice=quantity,
            )
            for axis in self.axes
            for quantity in self.quantities
        )  # fmt: skip

    def shares(self) -> pl.DataFrame:
        """Return the shares of the parameters on each slice.

        Columns: axis, index, value, group, share. Models that constraints drop are left out.
        """
        columns = ["axis", "index", "value"]
        tables = [
            self._along(axis).select(
                *columns, group=pl.lit(group), share=pl.col(OF_GROUP + group) / pl.col("parameters")
            )
            for group in self.groups
            for axis in self.axes
        ]
        empty = dict.fromkeys((*columns, "group"), pl.String) | {"share": pl.Float64}
        return pl.concat(tables).drop_nulls("share") if tables else pl.DataFrame(schema=empty)

    def _along(self, axis: str) -> pl.DataFrame:
        values = self.axes[axis]
        places = pl.DataFrame({axis: values, "index": range(len(values))})
        text = pl.col(axis).cast(pl.String).alias("value")
        is_middle = pl.col("index") == len(values) // 2
        return (
            places.join(self._ends[axis], on=axis)
            .join(pl.concat(self._slices[axis]), on=axis, how="left")
            .with_columns(text, axis=pl.lit(axis), is_middle=is_middle)
            .sort("index")
        )
