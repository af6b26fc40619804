"""What the charts of a sweep are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from modelbudget.compare.comparison import value

if TYPE_CHECKING:
    from modelbudget.catalogue.accelerators import Accelerator

MOST_BARS = 40
"""Up to this number of models there is a bar for each; more are drawn as a strip."""


@dataclass(frozen=True)
class SweepTables:
    """The tables of a sweep. `axes` maps the fields of the grid to their values, in their order.

    `solved`: solutions, frontier and published models of a sweep with `solve`; otherwise empty.
    `drawn` has the names of the charts that are drawn already.
    """

    axes: dict[str, list]
    comparison: pl.DataFrame
    devices: list[Accelerator]
    summary: dict = field(default_factory=dict)
    solved: Sequence[pl.DataFrame] = ()
    drawn: set[str] = field(default_factory=set)

    @cached_property
    def measured(self) -> set[str]:
        """The quantities that are measured."""
        return set(self.comparison.drop_nulls("measured")["quantity"])

    @cached_property
    def varying(self) -> set[str]:
        """The measured quantities whose values of components differ among points."""
        rows = self.comparison.filter(pl.col("quantity").is_in(list(self.measured)), value() != 0)
        component, points = ("quantity", "component"), pl.col("point").n_unique()
        is_absent = points.over(component) < points.over("quantity")
        return set(rows.filter((value().n_unique().over(component) > 1) | is_absent)["quantity"])

    @property
    def has_bars(self) -> bool:
        """Whether the points are few enough for a bar each."""
        return self.comparison["point"].n_unique() <= MOST_BARS

    @property
    def is_list(self) -> bool:
        """Whether the models are listed one by one or are the only axis, and have a bar each."""
        return self.axes.keys() <= {"base"} and self.has_bars

    @property
    def is_of_devices(self) -> bool:
        """Whether peaks are of a grid of data-parallel devices that varies nothing but shards."""
        fields = {"data_parallel"} <= self.axes.keys() <= {"data_parallel", "zero", "data_rank"}
        return fields and "bytes_at_peak" in self.measured
