"""All shapes of a grid within bounds, and the frontier of the best of them.

Every shape is evaluated, in columns: what is found is all that there is, and the number of shapes
that remain after each bound proves it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, get_args

import numpy as np
import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.evaluators import intervals
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.accelerators import all_accelerators, named_or_sized
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.paths import ACCELERATORS
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.predict import by_regime, grid_columns
from modelbudget.predict.formula import formula
from modelbudget.predict.grid import Grid
from modelbudget.predict.grid_rows import Chunk
from modelbudget.predict.predicted_grids import CHUNKS, Predicted, with_grids, without_program
from modelbudget.sweeps.derive import FIELDS_OF_RUN, resolved
from modelbudget.sweeps.expand import Expanded, point_at, where
from modelbudget.sweeps.quantity_names import Quantity
from modelbudget.sweeps.read import CheckedSweep
from modelbudget.sweeps.sweep_file import Bound, Solve, Sweep, Value

MOST_SOLUTIONS = 1_000_000
"""Solutions that are kept. All are counted, and all count for the frontier."""
MOST_POINTS = 500
"""Shapes on the frontier that are instantiated; of more, every second, third, …"""
ALLOWED = "allowed"
"""What is left by the constraints, before any bound."""
BEYOND = "beyond"
"""Column of published models: how far they are beyond the bounds."""
SHAPES = "shapes"
"""Column of the frontier: the number of solutions that are equally good."""

Bounds = dict[str, tuple[int, int]]


class Solved(NamedTuple):
    """The solutions of a sweep, the frontier of the best, and the proof that there are no others.

    `proof` counts shapes: of the grid, allowed by its constraints, left after each bound in turn,
    solutions, those in `solutions` (at most MOST_SOLUTIONS), and on the frontier.
    """

    solutions: pl.DataFrame
    frontier: pl.DataFrame
    proof: dict[str, Any]


class _Part(NamedTuple):
    """What one chunk adds: shapes left after constraints and bounds; those without a formula."""

    left: dict[str, int]
    unknown: dict[str, int]
    solutions: pl.DataFrame | None


def planned(checked: CheckedSweep) -> Expanded:
    """Return a sweep with `solve` before its points are known. Raises InputError with mistakes."""
    checked_grids(checked)
    return Expanded(*checked.about, [], 0)


def checked_grids(checked: CheckedSweep) -> Predicted:
    """Return the grids, with bounds that some shape may meet. Raises InputError with mistakes."""
    solve, mistakes = _solve(checked.sweep), checked.mistakes
    known = _known(checked)
    for key, names in (("within", solve.within), ("best", solve.best)):
        for name in names:
            if name not in known:
                mistakes.add(f"solve.{key}.{name}: {_unknown(name, known)}")
    for name, bound in solve.within.items():
        try:
            _ends(name, bound)
        except ValueError as error:
            mistakes.add(f"solve.within.{name} = {show(bound)}: {error}")
    mistakes.raise_if_any()
    predicted = with_grids(checked)
    for line in _out_of_reach(predicted.grids, solve):
        mistakes.add(line)
    mistakes.raise_if_any()
    return predicted


def _solve(sweep: Sweep) -> Solve:
    assert sweep.solve is not None  # of a sweep without it nothing is solved
    return sweep.solve


def _known(checked: CheckedSweep) -> list[str]:
    """Return all names that bounds and objectives may have."""
    families = {base.family for base in checked.bases.values()}
    fields = [name for of in (*families, RunConfig) for name in of.numeric()]
    conventions = [
        name
        for name, convention in BY_NAME.items()
        if not any(convention.why_not(family) for family in families)
    ]
    return list(dict.fromkeys([*checked.sweep.measure.quantities, *conventions, *fields]))


def _unknown(name: str, known: list[str]) -> str:
    """Return what is wrong with a name that nothing here has."""
    if name in BY_NAME:
        return "this convention does not apply to the base"
    if name in get_args(Quantity):
        return "not measured; add it to measure.quantities"
    return f"unknown name{offered(name, known, 'docs/fields.md and docs/conventions.md')}"


def _ends(name: str, bound: Bound) -> tuple[int, int]:
    """Return the ends of a bound; an accelerator's memory is the most. Raises ValueError."""
    if isinstance(bound, list):
        return bound[0], bound[1]
    if not name.endswith("_bytes"):
        raise ValueError("an accelerator bounds bytes; allowed: [least, most]")
    return 0, named_or_sized(bound, all_accelerators(ACCELERATORS)).bytes


def bounds_of(solve: Solve) -> Bounds:
    return {name: _ends(name, bound) for name, bound in solve.within.items()}


def _out_of_reach(grids: list[Grid], solve: Solve) -> Iterator[str]:
    """Yield names that no shape has a formula for, or whose bound none can meet.

    By intervals, without evaluating the shapes: a bound that passes may still exclude all of them.
    """
    bounds = bounds_of(solve)
    reach = [
        values_in(grid, intervals.namespace, fields, solve.names)
        for grid in grids
        for fields in grid.bounds()
    ]
    for name in solve.names:
        values = [value for value, holds in (of[name] for of in reach) if intervals.most(holds)]
        if not values and name in without_program([name], grids):
            yield f"solve: {name}: no formula covers it here"
        elif not values:
            continue  # by programs, whose rows have no common bounds
        elif not all(map(intervals.fits, values)):
            yield f"solve: {name}: may exceed 64 bits in this grid; allowed: smaller values"
        elif name in bounds:
            least, most = bounds[name]
            low, high = (end(map(of, values)) for end, of in ((min, intervals.least),
                                                              (max, intervals.most)))  # fmt: skip
            if low > most or high < least:
                yield (
                    f"solve.within.{name} = {show(solve.within[name])}: no shape of the grid meets "
                    f"it; all have at least {low:,} and at most {high:,}"
                )


def solved(search: Predicted, threads: int) -> Solved:
    """Evaluate all shapes. Raises InputError with the nearest shape if no bound leaves any."""
    solve = _solve(search.sweep)
    bounds = bounds_of(solve)
    n_left, unknown = Counter[str](), Counter[str]()
    kept: list[pl.DataFrame] = []
    frontier = pl.DataFrame()
    for part in _parts(search.grids, solve, bounds, threads):
        n_left.update(part.left)
        unknown.update(part.unknown)
        if part.solutions is not None:
            kept.append(part.solutions.head(MOST_SOLUTIONS - sum(table.height for table in kept)))
            best = [frontier, best_of(part.solutions, solve.best)]
            frontier = best_of(pl.concat(best, how="diagonal"), solve.best)
    if not kept:
        raise InputError([f"{search.path}: {_nothing(search, bounds, n_left)}"])
    solutions = pl.concat(kept)
    if frontier.is_empty():
        names = ", ".join(solve.best)
        lacking = f"no formula covers {names} for any of the {n_left[list(bounds)[-1]]:,} solutions"
        raise InputError([f"{search.path}: solve.best: {lacking}"])
    steps = [
        {"name": name, "least": least, "most": most, "left": n_left[name], "unknown": unknown[name]}
        for name, (least, most) in bounds.items()
    ]
    proof = {
        "shapes": search.combinations,
        "allowed": n_left[ALLOWED],
        "within": steps,
        "solutions": steps[-1]["left"],
        "kept": solutions.height,
        "frontier": frontier.height,
    }
    return Solved(solutions, frontier, proof)


def _parts(grids: list[Grid], solve: Solve, bounds: Bounds, threads: int) -> Iterator[_Part]:
    """Yield what each chunk adds, in the order of the chunks."""
    chunks = ((grid, chunk) for grid in grids for chunk in grid.allowed())
    with ThreadPoolExecutor(threads) as pool:
        while some := list(itertools.islice(chunks, CHUNKS)):
            yield from pool.map(lambda pair: _part(pair[0], pair[1], solve, bounds), some)


def _part(grid: Grid, chunk: Chunk, solve: Solve, bounds: Bounds) -> _Part:
    """Apply bounds in turn, each to the rows that are left."""
    n_left, unknown = {ALLOWED: chunk.rows}, {}
    for name, ends in bounds.items():
        if not chunk.rows:
            break
        values = column(grid, name, chunk)
        unknown[name] = values.null_count()
        chunk = chunk.where(values.is_between(*ends).fill_null(False).to_numpy())
        n_left[name] = chunk.rows
    if not chunk.rows:
        return _Part(n_left, unknown, None)
    swept = grid.swept(chunk)
    columns = [column(grid, name, chunk) for name in solve.names if name not in swept]
    return _Part(n_left, unknown, pl.DataFrame(swept).with_columns(columns))


def value_of(name: str, family: type[Architecture], a: Any, r: Any) -> tuple[Any, Any]:
    """Return a value in one reading of the fields, and where its formula holds (1, 0, a column).

    Peaks are the largest phase; FLOPs under a convention are those of a token of the run's length.
    """
    if name in get_args(Quantity):
        terms, holds = formula(family, name, a, r)
        return of_model(name, terms) if terms else 0, holds
    for schema, record in ((family, a), (RunConfig, r)):
        if name in schema.model_fields:
            return getattr(record, name), 1
    return 0, 0


def values_in(grid: Grid, namespace: Any, fields: dict, names: Sequence[str]) -> dict[str, tuple]:
    """Return the value of each name and where it holds, in one reading of a grid's fields."""
    family = grid.base.family
    a, r = (namespace(schema, fields) for schema in (family, RunConfig))
    return {name: value_of(name, family, a, r) for name in names}


def column(grid: Grid, name: str, chunk: Chunk) -> pl.Series:
    """Return the values of a name in the rows of a chunk, null without a formula and a program."""
    fields = grid.values(chunk)
    value_and_holds = values_in(grid, grid_columns.namespace, fields, [name])[name]
    (known,) = grid_columns.columns(grid, chunk, fields, [value_and_holds])
    return by_regime.filled(grid.base.family, name, fields, known).alias(name)


def best_of(table: pl.DataFrame, best: Mapping[str, str]) -> pl.DataFrame:
    """Return the frontier: rows that no other row equals or exceeds in all and exceeds in one.

    Of rows that are equally good the first stands for all, whose number is `shapes`. Sorted by the
    first objective, the best first. Rows without a value of an objective are left out.
    """
    n_shapes = pl.len() if SHAPES not in table.columns else pl.col(SHAPES).sum()
    other_columns = [name for name in table.columns if name not in (*best, SHAPES)]
    distinct = (
        table.drop_nulls(list(best))
        .group_by(list(best), maintain_order=True)
        .agg(pl.col(other_columns).first(), n_shapes.cast(pl.Int64).alias(SHAPES))
        .select(*(name for name in table.columns if name != SHAPES), SHAPES)
    )
    signs = [-1 if wanted == "most" else 1 for wanted in best.values()]
    return distinct[_least(distinct.select(list(best)).cast(pl.Int64).to_numpy() * np.array(signs))]


def _least(values: np.ndarray) -> list[int]:
    """Return the rows of distinct values that no other row is at most in all columns."""
    left, places = np.lexsort(values.T[::-1]), []
    while len(left):
        first = left[0]  # sorted: none of the others is at most this in all columns
        places.append(int(first))
        left = left[(values[left] < values[first]).any(axis=1)]
    return places


def of_points(checked: CheckedSweep, frontier: pl.DataFrame) -> Expanded:
    """Return the sweep with the shapes of the frontier as its points.

    If there are more than MOST_POINTS, every second, third, … of them.
    """
    every = -(-frontier.height // MOST_POINTS)
    chosen = frontier.gather_every(every).select(*checked.sweep.axes()).to_dicts()
    points = [
        point_at(number, settings, checked.sweep, checked.bases)
        for number, settings in enumerate(chosen, start=1)
    ]
    return Expanded(*checked.about, [point for point in points if point is not None], 0)


def _nothing(search: Predicted, bounds: Bounds, n_left: Counter[str]) -> str:
    """Describe which bound excludes the last shapes, and the shape that is nearest to all."""
    steps = [ALLOWED, *bounds]
    before, name = next(pair for pair in itertools.pairwise(steps) if not n_left[pair[1]])
    least, most = bounds[name]
    return (
        f"solve.within.{name}: none of the {n_left[before]:,} shapes that are left has {least:,} "
        f"to {most:,}; nearest to all bounds: {_nearest(search.grids, bounds)}; "
        "allowed: wider bounds, or a larger grid"
    )


def _nearest(grids: Iterable[Grid], bounds: Bounds) -> str:
    """Describe the shape whose values are, added up as shares of the bounds, least beyond them."""
    best: tuple[float, str] | None = None
    for grid in grids:
        for chunk in grid.allowed():
            table = pl.DataFrame([column(grid, name, chunk) for name in bounds])
            far = table.select(_beyond(bounds)).to_series()
            at = far.arg_min()
            if at is not None and (best is None or far[at] < best[0]):
                shape = {name: swept[at] for name, swept in grid.swept(chunk).items()}
                has = {name: v for name, v in table.row(at, named=True).items() if name in bounds}
                best = far[at], where(shape | {n: v for n, v in has.items() if n not in shape})
    return best[1] if best else "none has a formula for all of them"


def _beyond(bounds: Bounds) -> pl.Expr:
    """Return how far values are beyond their bounds, as shares of these, added up."""
    return pl.sum_horizontal(
        [
            pl.max_horizontal(
                (least - pl.col(name)) / max(least, 1), (pl.col(name) - most) / max(most, 1), 0.0
            )
            for name, (least, most) in bounds.items()
        ],
        ignore_nulls=False,
    ).alias(BEYOND)


def published(catalogue: Catalogue, sweep: Sweep) -> pl.DataFrame:
    """Return the published models that have all objectives, with the sweep's fields of the run.

    Columns: model, label, the names of `solve`, and `beyond`: how far these are beyond the bounds,
    as shares, added up; null if one is not known. Sorted by that: those within all bounds first.
    """
    solve = _solve(sweep)
    chosen = {name: value for name, value in sweep.fixed.items() if name in FIELDS_OF_RUN}
    rows = [
        {"model": base.name, "label": base.label, **_of_model(base, chosen, solve.names)}
        for base in catalogue.bases.values()
        if base.model and base.family.has_formula
    ]
    schema = {"model": pl.String, "label": pl.String, **dict.fromkeys(solve.names, pl.Int64)}
    table = pl.DataFrame(rows, schema).drop_nulls(list(solve.best))
    return table.with_columns(_beyond(bounds_of(solve))).sort(BEYOND, nulls_last=True)


def _of_model(base: Base, chosen: dict[str, Value], names: list[str]) -> dict[str, int]:
    """Return the values of a model that it has, none if it cannot run so."""
    try:
        a, r = resolved(base, chosen)
    except ValueError:
        return {}
    values = {name: value_of(name, base.family, a, r) for name in names}
    return {name: int(value) for name, (value, holds) in values.items() if holds}
