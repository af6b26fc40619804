"""Checks of the quantities of a grid: 64 bits, and what was compared with the class they name."""

from collections.abc import Iterator, Sequence

import polars as pl

from modelbudget.architecture.evaluators import intervals, polars_columns
from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.predict.grid import Grid
from modelbudget.sweeps.compared import OF_ARCHITECTURE, not_compared_at
from modelbudget.sweeps.expand import check_totals, point_at, where
from modelbudget.sweeps.points_table import model_of
from modelbudget.sweeps.sweep_mistakes import Mistakes

NEARLY = 1e-9
"""Upper bound of the relative floating-point error of a formula."""
MOST_COMPARED = 2_000
"""Points that are held against what was compared, each in about a millisecond."""


def check_totals_of_grid(grid: Grid, mistakes: Mistakes) -> None:
    """Add totals that exceed 64 bits, in rows without other mistakes, if bounds do."""
    if not all(
        intervals.fits(of_model(quantity, terms))
        for values in grid.bounds()
        for quantity, terms, _ in _formulas_with_totals(grid, intervals.namespace, values)
    ):
        _add_overflows(grid, mistakes)


def _formulas_with_totals(grid: Grid, namespace, values: dict) -> Iterator[tuple]:
    """Yield each quantity that `expand.check_totals` compares with the largest integer."""
    formulas = grid.formulas(namespace, values, ["parameter_bytes", *grid.sweep.measure.quantities])
    return ((quantity, *formula) for quantity, formula in formulas.items())


def _add_overflows(grid: Grid, mistakes: Mistakes) -> None:
    """Add rows that exceed 64 bits.

    They are found in floating point; close cases and the messages are computed exactly.
    """
    first, times = None, 0
    for chunk in grid.allowed():
        values = {
            name: value.cast(pl.Float64) if isinstance(value, pl.Series) else value
            for name, value in grid.values(chunk).items()
        }
        surely, close = (pl.repeat(False, chunk.rows, eager=True) for _ in range(2))
        for quantity, terms, holds in _formulas_with_totals(grid, polars_columns.namespace, values):
            size = polars_columns.series(1.0 * of_model(quantity, terms) * holds, chunk.rows)
            surely = surely | (size > MAX_COUNT * (1 + NEARLY))
            close = close | (size > MAX_COUNT * (1 - NEARLY))
        table = pl.DataFrame({"surely": surely, "close": close, "row": grid.numbers(chunk)})
        table = table.filter(close)
        past = table.filter("surely")["row"].to_list()
        past += [row for row in table.filter(~pl.col("surely"))["row"] if _errors_at(grid, row)]
        if past:
            first = min(past) if first is None else min(first, *past)
            times += len(past)
    if first is not None:
        for line in _errors_at(grid, first):
            mistakes.add(line, where(grid.settings(first)), times)


def _errors_at(grid: Grid, row: int) -> list[str]:
    """Return the mistakes of one combination when it is expanded to a point."""
    try:
        point = point_at(0, grid.settings(row), grid.sweep, {grid.name: grid.base})
        if point is not None:
            check_totals(*point.model, grid.sweep.measure.quantities)
    except ValueError as error:
        return str(error).splitlines()
    return []


def check_classes_of_grid(grid: Grid, quantities: Sequence[str], mistakes: Mistakes) -> None:
    """Add why quantities of points that name their class were not compared with it."""
    wanted = [name for name in quantities if name not in OF_ARCHITECTURE]
    if not wanted or TRANSFORMERS not in grid.fields["implementation"].values:
        return
    n_points = 0
    for chunk in grid.allowed():
        values = grid.values(chunk)
        if str(values["implementation"]) != TRANSFORMERS:
            continue
        n_points += chunk.rows
        if n_points > MOST_COMPARED:
            mistakes.add(
                f"implementation = {TRANSFORMERS!r}: more than {MOST_COMPARED:,} points to hold "
                f"against what was compared with a class; allowed: fewer, or implementation: {OURS}"
            )
            return
        for i in range(chunk.rows):
            row = {n: v[i] if isinstance(v, pl.Series) else v for n, v in values.items()}
            pair = model_of(grid.base.family, row)
            for name in wanted:
                if why := not_compared_at(name, grid.base.transformers, grid.base.config, *pair):
                    mistakes.add(
                        f"measure.quantities: {name}: {why}; allowed: with a device, or "
                        f"implementation: {OURS}"
                    )
