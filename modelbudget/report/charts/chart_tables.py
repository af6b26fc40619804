"""Tables for charts: those of a sweep, measured values by group, and samples of long axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from modelbudget.architecture.terms import is_peak
from modelbudget.compare.comparison import value
from modelbudget.components.groups import GROUPS, group_of
from modelbudget.sweeps.fields_in_words import value_of

if TYPE_CHECKING:
    from modelbudget.catalogue.accelerators import Accelerator

Item = TypeVar("Item")
RANK = pl.col("group").replace_strict([*GROUPS], range(len(GROUPS)), return_dtype=pl.Int64)
"""The position of a group in a stack."""
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


def budget(comparison: pl.DataFrame, quantity: str = "parameters") -> pl.DataFrame:
    """Return one row for each measured point × group of the whole table, zeros included.

    Columns: point, label, the swept fields, group, rank (position in the stack), value, share, and
    the total of the point. Points without a measurement, or with a total of 0, are left out.
    """
    keys = comparison.columns[: comparison.columns.index("component")]
    rows = comparison.filter(pl.col("quantity") == quantity, pl.col("measured").is_not_null())
    group = pl.col("component").map_elements(group_of, pl.String)
    sums = rows.group_by("point", group=group).agg(value=pl.col("measured").sum())
    present = sums.filter(pl.col("value") > 0).select("group").unique()
    return (
        rows.select(keys).unique("point", keep="first")
        .join(present, how="cross")
        .join(sums, on=["point", "group"], how="left")
        .with_columns(pl.col("value").fill_null(0), rank=RANK)
        .with_columns(total=pl.col("value").sum().over("point"))
        .filter(pl.col("total") > 0)
        .with_columns(share=pl.col("value") / pl.col("total"))
        .sort("point", "rank")
    )  # fmt: skip


def amounts_of_points(comparison: pl.DataFrame, quantity: str) -> pl.DataFrame:
    """Return one row for each point: its fields, and the amount of a quantity."""
    of_point = comparison.columns[: comparison.columns.index("component")]
    largest = pl.col("value").max() if is_peak(quantity) else pl.col("value").sum()
    return (
        comparison.filter(pl.col("quantity") == quantity)
        .with_columns(value=value())
        .drop_nulls("value")
        .group_by(of_point, maintain_order=True)
        .agg(value=largest)
    )


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Return the items by a key, in their order."""
    by_key: dict[Any, list[Item]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return by_key


def groups_in(table: pl.DataFrame) -> list[str]:
    """Return the groups of a table in the order of the stack."""
    return table.sort("rank")["group"].unique(maintain_order=True).to_list()


def totals(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point, without the columns of groups."""
    return table.unique("point", keep="first", maintain_order=True).drop("group", "rank", "value")


def evenly_spaced(values: Sequence, most: int) -> list:
    """Return at most `most` of the values, evenly spaced, first and last included."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(i * step)] for i in range(most)]


def some_values(table: pl.DataFrame, field: str, most: int) -> pl.DataFrame:
    """Return the rows of at most so many values of a field, evenly spaced."""
    return table.filter(pl.col(field).is_in(evenly_spaced(values(table, field), most)))


def by_value(table: pl.DataFrame, field: str | None, most: int) -> dict[str, pl.DataFrame]:
    """Return the rows of some values of a field by the title of their panel."""
    if field is None:
        return {"": table}
    chosen = evenly_spaced(values(table, field), most)
    return {value_of(field, one): table.filter(pl.col(field) == one) for one in chosen}


def distinct(tables: dict[str, pl.DataFrame], *columns: str) -> dict[str, pl.DataFrame]:
    """Return each of the tables that differ in these columns once, with the titles of its equals.

    The titles are settings: `tied` and `not tied` become `tied or not tied`.
    """
    titles = grouped(tables, lambda title: tuple(
        tables[title].select(columns).unique().sort(columns).rows()))  # fmt: skip
    return {_any_of(equal): tables[equal[0]] for equal in titles.values()}


def _any_of(titles: list[str]) -> str:
    """Join titles of settings: `n = 1, tied` and `n = 2, tied` become `n = 1 or 2, tied`."""
    settings = [title.split(", ") for title in titles]
    if len(set(map(len, settings))) > 1:  # a value with a comma
        return " or ".join(titles)
    columns = zip(*settings, strict=True)
    return ", ".join(_one_of(list(dict.fromkeys(column))) for column in columns)


def _one_of(values: list[str]) -> str:
    name = values[0].partition(" = ")[0] + " = "
    if all(value.startswith(name) for value in values):
        return name + " or ".join(value.removeprefix(name) for value in values)
    return " or ".join(values)


def least_and_most(rows: pl.DataFrame, *columns: str) -> tuple[Any, Any]:
    """Return the minimum and the maximum of these columns of numbers together."""
    chosen = rows.select(columns)
    return min(chosen.min().row(0)), max(chosen.max().row(0))


def named_ends(rows: pl.DataFrame, column: str, text: Callable[[Any], str]) -> str:
    """Return the least and the most of a column with their labels: `1 % (A) to 3 % (B)`.

    Of rows whose values are equal as text, it is the one with the shortest label.
    """
    in_order = rows.sort(column, maintain_order=True).select(column, "label").rows()
    labels = grouped(in_order, lambda row: text(row[0]))
    least, *_, most = [*labels] * 2
    ends = (f"{end} ({min((label for _, label in labels[end]), key=len)})" for end in (least, most))
    return " to ".join(dict.fromkeys(ends))


def values(table: pl.DataFrame, field: str) -> list:
    """Return the values of a field that occur: numbers in ascending order, others as they come."""
    column = table[field].drop_nulls()
    distinct_values = column.unique(maintain_order=True)
    return (distinct_values.sort() if column.dtype.is_numeric() else distinct_values).to_list()
