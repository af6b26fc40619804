"""Expansion of a sweep file to points: every combination, resolved to a complete architecture.

Finds all mistakes of a file before a run starts.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from modelbudget.architecture.base import MAX_COUNT, Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.number_format import counted
from modelbudget.common.suggestions import did_you_mean
from modelbudget.common.validation_messages import show
from modelbudget.sweeps.check_quantities import check_quantities
from modelbudget.sweeps.derive import keeps, records, resolve
from modelbudget.sweeps.point import Point
from modelbudget.sweeps.quantity_names import OF_CONVENTION, OF_RUN
from modelbudget.sweeps.read import CheckedSweep, listed_points, read
from modelbudget.sweeps.sweep_file import MAX_POINTS, MAX_PREDICTIONS, Sweep, Value

PROGRESS_AFTER_S = 1.5
"""Seconds after which a terminal shows progress."""


class Expanded(NamedTuple):
    """A sweep with its points.

    `dropped` is the number of combinations that broke a constraint; `notes` are lines about its
    config.json files.
    """

    path: Path
    name: str
    sweep: Sweep
    files: list[Path]
    notes: list[str]
    points: list[Point]
    dropped: int


def expand(path: Path, catalogue: Catalogue) -> Expanded:
    """Return every point of the sweep in `path`. Raises InputError with all mistakes."""
    return expanded(read(path, catalogue))


def expanded(checked: CheckedSweep) -> Expanded:
    """Return every point. Raises InputError with all mistakes."""
    _, sweep, _, catalogue, mistakes = checked
    axes, listed = sweep.axes(), listed_points(sweep, catalogue)
    n_points = math.prod(len(values) for values in axes.values()) * bool(axes) + len(listed)
    if n_points > MAX_POINTS:
        mistakes.add(
            f"grid: {n_points:,} points; at most {MAX_POINTS:,} are allowed, or up to "
            f"{MAX_PREDICTIONS:,} that are predicted and not measured (measure.device: none)"
        )
        mistakes.raise_if_any()
    before = len(mistakes.points)
    grid = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    points, dropped = _points(checked, itertools.chain(grid if axes else (), listed), n_points)
    if len(mistakes.points) > before:
        mistakes.raise_if_any()
    if not points:
        mistakes.add(
            f"constraints: drop all {counted(dropped, 'point')}; nothing is left to measure"
        )
    elif sweep.headline is not None and sweep.headline not in {point.label for point in points}:
        hint = did_you_mean(sweep.headline, [point.label for point in points])
        mistakes.add(f"headline = {show(sweep.headline)}: no point has this label{hint}")
    mistakes.raise_if_any()
    return Expanded(*checked.about, points, dropped)


def _points(
    checked: CheckedSweep, chosen: Iterable[dict], n_points: int
) -> tuple[list[Point], int]:
    points, dropped = [], 0
    for number, settings in enumerate(_with_progress(chosen, n_points, checked.path), start=1):
        try:
            point = point_at(number, settings, checked.sweep, checked.bases)
            if point:
                check_totals(*point.model, checked.sweep.measure.quantities)
        except ValueError as error:
            for line in str(error).splitlines():
                checked.mistakes.add(line, where(settings))
            continue
        if point is None:
            dropped += 1
        else:
            points.append(point)
    return points, dropped


def _with_progress(chosen: Iterable[dict], n_points: int, path: Path) -> Iterable[dict]:
    """Show progress on stderr if that is a terminal and the work takes longer than a moment."""
    if not sys.stderr.isatty():
        return chosen
    from tqdm import tqdm  # importing it takes 30 ms, and only a terminal needs it

    return tqdm(
        chosen,
        desc=f"{path.name}: checking points",
        total=n_points,
        delay=PROGRESS_AFTER_S,
        leave=False,
    )


def where(settings: dict[str, Value]) -> str:
    """Format a combination: `n_layer = 2, d_model = 64`."""
    return ", ".join(f"{name} = {show(value)}" for name, value in settings.items())


def point_at(number: int, settings: dict, sweep: Sweep, bases: dict[str, Base]) -> Point | None:
    """Build one point, or None if a constraint drops it. Raises ValueError."""
    base = bases[settings.get("base", sweep.base)]
    axes = {name: value for name, value in settings.items() if name != "label"}
    chosen = {name: value for name, value in axes.items() if name != "base"}
    values = resolve(base, sweep.fixed | chosen, sweep.derive)
    if not all(keeps(i, text, values) for i, text in enumerate(sweep.constraints)):
        return None
    label = settings.get("label") or _label(base, axes)
    architecture, run = records(base, values, sweep.derive)
    check_quantities(architecture, run, sweep)
    about = f"{number:06}", str(label), base.name
    return Point(*about, architecture, run, base.transformers, base.config, axes)


def _label(base: Base, axes: dict[str, Value]) -> str:
    chosen = {name: value for name, value in axes.items() if name != "base"}
    names = [base.label] if "base" in axes or not chosen else []
    return ", ".join(names + [f"{n} = {show(value).strip(chr(39))}" for n, value in chosen.items()])


def check_totals(architecture: Architecture, run: RunConfig, quantities: Sequence[str]) -> None:
    """Raise ValueError if a quantity of a model exceeds the largest 64-bit integer."""
    n_bytes = of_model("parameter_bytes", architecture.parameter_bytes(architecture, run))
    if n_bytes > MAX_COUNT:
        raise ValueError(
            f"{n_bytes:,} bytes of parameters in {run.dtype}: more than {MAX_COUNT:,}, "
            "the largest 64-bit integer"
        )
    for quantity in quantities:
        is_predicted = quantity in OF_CONVENTION or (
            quantity in OF_RUN and hasattr(architecture, quantity)
        )
        if is_predicted and architecture.has_formula_for(quantity, architecture, run):
            value = of_model(quantity, architecture.terms(quantity, architecture, run))
            if value > MAX_COUNT:
                raise ValueError(
                    f"{quantity} = {value:,}: more than {MAX_COUNT:,}, the largest 64-bit integer; "
                    "choose a smaller batch or length"
                )
