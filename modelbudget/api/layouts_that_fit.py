"""The layouts in which devices can share a model: which fit, and on how few devices."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from modelbudget.api.chosen_model import ChosenModel
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.catalogue.memory_margins import Grade, Margins
from modelbudget.common.errors import InputError
from modelbudget.predict import fitting_layouts, layout_search
from modelbudget.predict.layout_search import LAYOUT, MESH, PEAK, SOLVED
from modelbudget.sweeps.compared import not_compared_at

OF_EACH = 4
"""Layouts that are offered of each way to recompute activations."""


class Layouts(NamedTuple):
    """All layouts of `devices`, and of the powers of two below, that model and run allow.

    `table`: one row for each, the simplest first, with the columns of `predict.layout_search`, fits
    (at least tightly), grade (as of `Fit`) and margin (bytes that are left). A batch is that of one
    data-parallel replica.
    """

    model: ChosenModel
    chosen: Mapping[str, Any]
    accelerator: Accelerator
    devices: int
    table: pl.DataFrame
    margins: Margins

    @property
    def of_all(self) -> pl.DataFrame:
        """The layouts of all devices."""
        return self.table.filter(self.table["devices"] == self.devices)

    @property
    def fewest(self) -> dict[Grade, int]:
        """The fewest devices with a layout that fits, and that is tight, if these are fewer."""
        return fitting_layouts.fewest(self.table, self.margins, self.accelerator.bytes)

    @property
    def pareto(self) -> pl.DataFrame:
        """The layouts with the least bytes, by number of devices, where more devices need fewer."""
        return fitting_layouts.pareto(self.table)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The simplest layouts of all devices that fit, with the largest batch and length of each.

        If none fits with the margins, those that are tight; the largest sizes are tight.
        Of each way to recompute activations the first few meshes, each with the schedule and the
        microbatches that need least.
        """
        with_margins = self.of_all.filter(grade="fits")
        fitting = self.of_all.filter("fits") if with_margins.is_empty() else with_margins
        fitting = fitting.with_row_index("place")
        mesh = ["recompute", *MESH, "zero", "sequence_parallel"]
        best = fitting.sort("bytes").unique(mesh, keep="first", maintain_order=True).sort("place")
        best = best.group_by("recompute", maintain_order=True).head(OF_EACH).drop("place")
        room, fields = self.accelerator.bytes, {**self.model.chosen, **self.chosen}
        return [
            row
            | {
                f"largest_{field}": fitting_layouts.largest(
                    self.model.base, fields, row, field, room
                ).value
                for field in SOLVED
            }
            for row in best.iter_rows(named=True)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each layout; those that are offered have their largest sizes."""
        names, sizes = ("devices", *LAYOUT), [f"largest_{field}" for field in SOLVED]
        solved = {tuple(row[x] for x in names): row for row in self.offered}
        return [
            row | {size: solved.get(tuple(row[x] for x in names), {}).get(size) for size in sizes}
            for row in self.table.to_dicts()
        ]


def layouts(
    model: ChosenModel,
    accelerator: Accelerator,
    chosen: Mapping[str, Any],
    devices: int,
    margins: Margins,
) -> Layouts:
    """Return the layouts of a model on an accelerator. Raises InputError if there is none.

    Under the name of a class of `transformers`, those that were compared with it.
    """
    numbers, fields = fitting_layouts.numbers_of_devices(devices), {**model.chosen, **chosen}
    try:
        table = layout_search.layouts(model.base, fields, numbers)
    except ValueError as error:
        raise InputError.at(model.name, error) from None
    is_compared = [_is_compared(model, chosen, row) for row in table.iter_rows(named=True)]
    table = table.filter(pl.Series(is_compared, dtype=pl.Boolean))
    margin = accelerator.bytes - pl.col("bytes")
    table = table.with_columns(
        fits=margin >= 0, grade=fitting_layouts.grade(margins, accelerator.bytes), margin=margin
    )
    return Layouts(model, chosen, accelerator, devices, table, margins)


def _is_compared(model: ChosenModel, chosen: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a layout is of our modules, or was compared with the class that the run names."""
    if {**model.chosen, **chosen}.get("implementation") != TRANSFORMERS:
        return True
    pair = model.with_run({**chosen, **{name: row[name] for name in LAYOUT}})
    return not_compared_at(PEAK, model.base.transformers, model.base.config, *pair) is None
