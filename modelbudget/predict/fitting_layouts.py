"""Layouts of devices that fit: how many devices they need, and the largest batch and length."""

from collections.abc import Mapping
from typing import Any, cast

import polars as pl

from modelbudget.catalogue.memory_margins import Grade, Margins
from modelbudget.catalogue.named_models import Base
from modelbudget.predict.largest_that_fits import Solution, at, needed, solve
from modelbudget.predict.layout_search import LAYOUT, RANK, RANKS
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.sweep_file import Value


def numbers_of_devices(most: int) -> list[int]:
    """Return the powers of two below a number of devices, and the number."""
    return [2**i for i in range(most.bit_length()) if 2**i < most] + [most]


def grade(margins: Margins, memory: int) -> pl.Expr:
    """Return the grade of the bytes of each row (`Margins.grade`); null without a prediction."""
    n_bytes = pl.col("bytes")
    return (
        pl.when(n_bytes <= margins.room(memory)).then(pl.lit("fits"))
        .when(n_bytes <= memory).then(pl.lit("tight"))
        .when(n_bytes.is_not_null()).then(pl.lit("does not fit"))
    )  # fmt: skip


def fewest(layouts: pl.DataFrame, margins: Margins, memory: int) -> dict[Grade, int]:
    """Return the fewest devices on which a layout fits, and on which one does only tightly.

    Of `tight` only if that are fewer; a grade that no layout has is left out.
    """
    by_grade: dict[Grade, int | None] = {
        "fits": smallest(layouts, margins.room(memory)),
        "tight": smallest(layouts, memory),
    }
    if by_grade["tight"] == by_grade["fits"]:
        del by_grade["tight"]
    return {name: n for name, n in by_grade.items() if n is not None}


def smallest(layouts: pl.DataFrame, room: int) -> int | None:
    """Return the smallest number of devices with a layout that fits `room`; None if none does."""
    return cast(int | None, layouts.filter(pl.col("bytes") <= room)["devices"].min())


def pareto(layouts: pl.DataFrame) -> pl.DataFrame:
    """Return the front of devices and peak.

    It has the layout with the least bytes of each number of devices, unless fewer need no more.
    """
    best = layouts.drop_nulls("bytes").sort("devices", "bytes", maintain_order=True)
    best = best.unique("devices", keep="first", maintain_order=True)
    return best.filter((pl.col("bytes") < pl.col("bytes").cum_min().shift(1)).fill_null(True))


def largest(
    base: Base, chosen: Mapping[str, Value], layout: Mapping[str, Any], field: str, room: int
) -> Solution:
    """Return the largest batch, or length of one sequence a microbatch, with which a layout fits.

    The stage that needs most is solved; the others are too if they need more at that value.
    """
    of_layout = {name: layout[name] for name in LAYOUT}
    ranks = RANKS if layout["pipeline_parallel"] > 2 else RANKS[::2]
    ranks = ranks if layout["pipeline_parallel"] > 1 else RANKS[:1]
    solution = None
    for rank in sorted(ranks, key=lambda rank: rank != layout[RANK]):
        model = resolved(base, {**chosen, **of_layout, RANK: rank})
        value = solution and solution.value
        n_bytes = value and needed(at(model, field, value), "training")
        if solution is None or (n_bytes and n_bytes > room):
            solution = solve(model, field, "training", room)
    assert solution is not None  # the layout has a prediction
    return solution
