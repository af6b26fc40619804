"""Predictions of large grids without measurement: totals in a stream of rows, and their summary."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import polars as pl

from modelbudget.architecture.evaluators import intervals
from modelbudget.architecture.terms import Terms, of_model
from modelbudget.common.number_format import counted
from modelbudget.components.groups import GROUPS, group_of
from modelbudget.predict import by_regime, grid_columns
from modelbudget.predict.formula import formula
from modelbudget.predict.grid import Grid
from modelbudget.predict.grid_checks import check_classes_of_grid, check_totals_of_grid
from modelbudget.predict.grid_rows import Chunk
from modelbudget.sweeps.points_table import model_of
from modelbudget.sweeps.read import CheckedSweep
from modelbudget.sweeps.sweep_file import MAX_PREDICTIONS, Sweep
from modelbudget.sweeps.sweep_json import resolved
from modelbudget.sweeps.sweep_mistakes import Mistakes

CHUNKS = 8
"""Chunks that are in memory at a time and written to one file."""
OF_GROUP = "parameters."
"""Prefix of the column with a group's parameters."""


class Predicted(NamedTuple):
    """A sweep without measurement: a grid for each base that constraints do not drop entirely."""

    path: Path
    name: str
    sweep: Sweep
    files: list[Path]
    notes: list[str]
    grids: list[Grid]
    combinations: int


def predicted(checked: CheckedSweep) -> Predicted:
    """Return a sweep whose quantities all have a formula. Raises InputError with all mistakes."""
    result = with_grids(checked)
    for quantity in _without_formula(result.sweep, result.grids):
        checked.mistakes.add(
            f"measure.quantities: {quantity}: no formula covers it here; "
            "allowed with device: none: quantities with a formula"
        )
    checked.mistakes.raise_if_any()
    return result


def with_grids(checked: CheckedSweep) -> Predicted:
    """Return the grids of a sweep. Raises InputError with all mistakes."""
    mistakes = checked.mistakes
    grids = list(_grids(checked, mistakes))
    mistakes.raise_if_any()
    combinations = sum(grid.combinations for grid in grids)
    of_all = counted(combinations, "point")
    if combinations > MAX_PREDICTIONS:
        mistakes.add(f"grid: {of_all}; at most {MAX_PREDICTIONS:,} are allowed")
        mistakes.raise_if_any()
    grids = [grid for grid in grids if grid.check(mistakes) and grid.first() is not None]
    for grid in grids:
        check_totals_of_grid(grid, mistakes)
        check_classes_of_grid(grid, checked.sweep.measure.quantities, mistakes)
    if not grids and not mistakes.points:
        mistakes.add(f"constraints: drop all {of_all}; nothing is left to predict")
    mistakes.raise_if_any()
    return Predicted(*checked.about, grids, combinations)


def _grids(checked: CheckedSweep, mistakes: Mistakes) -> Iterator[Grid]:
    for name in map(str, checked.sweep.axes().get("base", [checked.sweep.base])):
        base = checked.bases[name]
        if not base.family.has_formula:
            mistakes.add(f"base = {name!r}: {base.family.name()} has no formula to predict from")
            continue
        try:
            yield Grid(name, base, checked.sweep)
        except ValueError as error:
            mistakes.add(str(error))


def _without_formula(sweep: Sweep, grids: list[Grid]) -> list[str]:
    """Return the quantities without a formula in all rows, or program in the first, of grids."""
    quantities = sweep.measure.quantities
    covered = {
        quantity
        for grid in grids
        for values in grid.bounds()
        for quantity, (_, holds) in grid.formulas(intervals.namespace, values, quantities).items()
        if intervals.most(holds)
    }
    return without_program([name for name in quantities if name not in covered], grids)


def without_program(quantities: list[str], grids: list[Grid]) -> list[str]:
    """Return the quantities of which no program gives one in the first row of a grid."""
    if not quantities:
        return []
    models = [model_of(grid.base.family, grid.first() or {}) for grid in grids]
    return [q for q in quantities if not any(formula(type(a), q, a, r)[1] for a, r in models)]


def frames(predicted: Predicted, threads: int) -> Iterator[pl.DataFrame]:
    """Yield all rows, some chunks at a time.

    Columns: base and the swept fields, the total of each quantity (null where no formula holds),
    and the parameters of each group that any row has.
    """
    groups = groups_of(predicted)
    chunks = ((grid, groups, chunk) for grid in predicted.grids for chunk in grid.allowed())
    with ThreadPoolExecutor(threads) as pool:
        while some := list(itertools.islice(chunks, CHUNKS)):
            yield pl.concat(pool.map(lambda arguments: rows_of(*arguments), some)).rechunk()


def rows_of(grid: Grid, groups: list[str], chunk: Chunk) -> pl.DataFrame:
    """Return base, axes and predictions in the rows of a chunk."""
    values, wanted, formulas = grid.values(chunk), grid.sweep.measure.quantities, {}
    for quantity, (terms, holds) in grid.formulas(grid_columns.namespace, values, wanted).items():
        formulas[quantity] = of_model(quantity, terms), holds
        if quantity == "parameters":
            sums = by_group(terms)
            formulas |= {OF_GROUP + group: (sums.get(group, 0), 1) for group in groups}
    known = grid_columns.columns(grid, chunk, values, formulas.values())
    by_name = {
        name: by_regime.filled(grid.base.family, name, values, column)
        for name, column in zip(formulas, known, strict=True)
    }
    order = [*wanted, *(OF_GROUP + group for group in groups)]
    return pl.DataFrame(grid.swept(chunk) | {name: by_name[name] for name in order})


def by_group(terms: Terms) -> dict:
    """Add up the terms of each group of components."""
    sums: dict = defaultdict(int)
    for component, term in terms.items():
        sums[group_of(component)] += term.total
    return sums


def groups_of(predicted: Predicted) -> list[str]:
    """Return the groups that may have parameters in some row, in the order of the charts."""
    if "parameters" not in predicted.sweep.measure.quantities:
        return []
    with_terms = {
        group
        for grid in predicted.grids
        for values in grid.bounds()
        for terms, _ in grid.formulas(intervals.namespace, values, ["parameters"]).values()
        for group, value in by_group(terms).items()
        if intervals.most(value)
    }
    return [group for group in GROUPS if group in with_terms]


def summary(predicted: Predicted, rows: int) -> dict:
    """Return the sweep file's content and the number of its predictions.

    For each base also the fields of one of its models, and which fields vary.
    """
    return resolved(predicted.name, predicted.sweep) | {
        "notes": predicted.notes,
        "points": rows,
        "dropped": predicted.combinations - rows,
        "models": [
            {
                "label": grid.base.label,
                "family": grid.base.family.name(),
                "fields": grid.first(),
                "varying": grid.varying(),
            }
            for grid in predicted.grids
        ],
    }
