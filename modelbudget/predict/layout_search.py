"""All ways in which some devices can share a model, and which of them fit.

A layout is a choice of the fields in `LAYOUT`. Their values are every divisor of the number of
devices, every option, and every number of microbatches that divides the batch; the constraints of
model and run decide which go together, as they do for points of a sweep. All layouts are predicted
at once, over columns.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import numpy as np
import polars as pl

from modelbudget.architecture.arithmetic import divisors
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import MESH
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.named_models import Base
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.predict.formula import formula
from modelbudget.predict.grid import Grid
from modelbudget.predict.grid_columns import totals
from modelbudget.predict.grid_rows import Chunk
from modelbudget.sweeps.check_quantities import quantity_constraints
from modelbudget.sweeps.derive import derived, settled
from modelbudget.sweeps.points_table import model_of
from modelbudget.sweeps.read import CheckedSweep
from modelbudget.sweeps.sweep_file import Measure, Sweep, Value

PEAK = "peak_training_bytes"
OPTIONS = ("sequence_parallel", "zero", "pipeline_schedule", "recompute")
BY_OPERATION = "selective_op"
"""Checkpointing that has a program alone, which takes longer: searched only where it is chosen."""
STAGES = "virtual_stages"
TURNS = "interleaved_1f1b"
"""A schedule that has a program alone, and that a search with other axes leaves out."""
INTERLEAVED = f"1 + (pipeline_schedule == '{TURNS}')"
"""The fewest stages on each device; with more, a schedule takes turns more often."""
LAYOUT = (*MESH, *OPTIONS, STAGES, "n_microbatch")
RANK, RANKS = "pipeline_rank", ("first", "second", "last")
"""Devices at different places of a pipeline hold different bytes. Those between its ends differ
only in the number of microbatches at once, of which the second stage has most.
"""
SIMPLEST = (
    "pipeline_parallel", "tensor_parallel", "context_parallel", "expert_parallel", "zero",
    "sequence_parallel", STAGES, "n_microbatch",
)  # fmt: skip
"""The order of layouts that compute equally much again: first those that divide least."""

FEW_RUNS, MOST_RUNS = 16, 128
"""Runs of programs in a search, of stages without a closed formula: 0.01 to 0.05 s each.

The few in any case, others where a layout may need less than the least known.
"""

SOLVED = ("batch", "length")
MOST_BYTES = 2**56
"""The most bytes of all devices together: 128 times as many, of another layout, fit in 64 bits."""
_NO_LAYOUT = (
    "model and run allow no layout of these; allowed: a product of "
    f"{', '.join(MESH[:-1])} and {MESH[-1]} that the fields in fixed allow"
)

Axes = Mapping[str, Sequence[Value]]


class Group(NamedTuple):
    """Layouts with the same options. `fields` are those of model and run; many are columns."""

    grid: Grid
    chunk: Chunk
    fields: dict[str, Any]

    def table(self, names: Sequence[str]) -> pl.DataFrame:
        """Return some fields of each layout.

        And bytes: on a device at the peak of training, by program without a closed formula; null
        without either. Programs of stages are not run here (`_with_stages`).
        """
        (peak,) = totals(self.grid, self.chunk, self.fields, [PEAK])
        wanted = peak.is_null() & (self.fields["pipeline_parallel"] == 1)
        if wanted.any():
            pairs = enumerate(zip(peak, wanted, strict=True))
            peaks = [self.peak(i) if is_wanted else n for i, (n, is_wanted) in pairs]
            peak = pl.Series(peaks, dtype=pl.Int64)
        columns = {name: self.fields[name] for name in names}
        types = {n: pl.Int64 for n, of in columns.items() if not isinstance(of, pl.Series | str)}
        columns = (pl.lit(of, types.get(name)).alias(name) for name, of in columns.items())
        return pl.DataFrame({"bytes": peak}).select(*columns, "bytes")

    def least(self) -> pl.Series:
        """Return bytes that each layout needs at least; null without a closed formula of them.

        Parameters, states and gradients, or what stages with `zero: 2` need, not interleaved, but
        for what is not there: with `zero: 3` gathered parameters of other layers, where stages are
        interleaved gradients of other stages, which are reduced before.
        """
        fields, of_rows = {**self.fields}, partial(totals, self.grid, self.chunk)
        schedule, zero = fields["pipeline_schedule"], fields["zero"]
        if is_partial(SimpleNamespace(**fields)):  # at least what is frozen
            fields |= {"adapter": "none", "trained": "default"}
            least = of_rows(fields, ["parameter_bytes"])[0]
            if zero and schedule != "none" and not fields["trained_from_layer"]:
                # All layers of a stage are gathered at once: at latest after its last backward pass
                (gathered,) = of_rows(fields | {"zero": 0}, ["parameter_bytes"], "layer.")
                least = least + gathered // (fields[STAGES] if zero == 3 else 1)
            return least
        terms = of_rows(fields, ["parameter_bytes", "optimizer_bytes", "gradient_bytes"])
        least = reduce(operator.add, terms)
        if schedule == "none":
            return least
        plain = fields | {"pipeline_schedule": "gpipe" if schedule == "gpipe" else "1f1b"}
        (peak,) = of_rows(plain | {"zero": min(zero, 2), "reduce_dtype": "dtype"}, [PEAK])
        if zero == 3 or (zero and schedule == TURNS):
            (gathered,) = of_rows(plain | {"zero": 0}, ["parameter_bytes"], "layer.")
            peak = peak - gathered
        if zero and schedule == TURNS:
            (gradients,) = of_rows(plain | {"zero": 0}, ["gradient_bytes"])
            peak = peak - gradients * (fields[STAGES] - 1) // fields[STAGES]
        return pl.DataFrame([least.alias("held"), peak.alias("peak")]).max_horizontal()

    def peak(self, row: int) -> int | None:
        """Return the bytes of one layout: a few are faster one by one than with symbols."""
        fields = {n: v[row] if isinstance(v, pl.Series) else v for n, v in self.fields.items()}
        family = self.grid.base.family
        terms, holds = formula(family, PEAK, *model_of(family, fields))
        return of_model(PEAK, terms) if holds else None


def layouts(
    base: Base,
    chosen: Mapping[str, Value],
    devices: Sequence[int],
    derive: Mapping[str, str] | None = None,
    axes: Axes | None = None,
) -> pl.DataFrame:
    """Return every layout of these numbers of devices that model and run allow, the simplest first.

    `chosen`: fields of model and run; a field of the layout that it sets has only that value.
    `derive`: expressions of fields; `axes`: values of other fields, each with every layout.

    Columns: devices, the fields of `axes` and `LAYOUT`, pipeline_rank (of the device that needs
    most) and bytes (on that device at the peak of training; null where it is not known). Raises
    ValueError if there is none.
    """
    with _advice():
        grid = _grid(base, chosen, devices, derive or {}, axes or {})
    names = [*(axes or {}), *LAYOUT]
    parts, kept_groups = [], []
    for group in groups(grid, devices):
        parts.append(group.table((*names, RANK)))
        kept_groups += [] if axes else [group]  # with axes there may be millions of rows
    if not parts:
        raise ValueError(f"devices = {list(devices)}: model and run allow no layout of these")
    if kept_groups:
        parts = _with_stages(kept_groups, parts)
    # Of the devices of a layout, first one without a formula, else the one that needs most.
    ranked = pl.concat(parts).sort("bytes", descending=True, maintain_order=True)
    ranked_best = ranked.unique(names, keep="first").with_columns(
        pl.col("sequence_parallel").cast(pl.Boolean),
        pl.when(pl.col("bytes").is_not_null()).then(RANK).alias(RANK),
    )
    ranked_best = ranked_best.join(_in_order(ranked_best.select(LAYOUT).unique()), on=LAYOUT)
    return ranked_best.sort("place", *(axes or {})).select("devices", *names, RANK, "bytes")


def _with_stages(of_groups: Sequence[Group], parts: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Fill rows of stages by programs.

    One after the other those of the layout that may need less than the least known of its number
    of devices, by the largest share, until none may: the least are exact then. Then a few others.
    """
    numbered = (
        part.with_columns(
            group=pl.lit(i),
            row=pl.int_range(part.height),
            low=of_groups[i].least() if part["bytes"].has_nulls() else part["bytes"],
        )
        for i, part in enumerate(parts)
    )
    rows = pl.concat(numbered).with_columns(
        least=pl.max_horizontal("low", "bytes").fill_null(0),
        devices=pl.reduce(operator.mul, [pl.col(name) for name in MESH]),
    )
    of_layouts = rows.group_by(LAYOUT, maintain_order=True).agg(
        pl.first("devices"),
        pl.max("least"),
        unknown=pl.struct("group", "row").sort_by("low").filter(pl.col("bytes").is_null()),
    )
    least = of_layouts["least"].to_numpy().astype(float)
    unknown = of_layouts["unknown"].to_list()
    is_known = np.array([not rows for rows in unknown])
    of_devices, number = np.unique(of_layouts["devices"].to_numpy(), return_inverse=True)
    for n_run in range(MOST_RUNS):
        best = np.full(len(of_devices), np.inf)
        np.minimum.at(best, number, np.where(is_known, least, np.inf))
        share = np.full(len(least), np.inf)
        np.divide(least, best[number], out=share, where=~is_known)
        place = int(share.argmin())
        if is_known[place] or (n_run >= FEW_RUNS and share[place] >= 1):
            break
        i, row = unknown[place].pop().values()
        parts[i][row, "bytes"] = peak = of_groups[i].peak(row)
        if peak is None:  # no program either
            unknown[place] = []
        least[place] = max(least[place], peak or np.inf)
        is_known[place] = not unknown[place]
    return parts


def _in_order(distinct: pl.DataFrame) -> pl.DataFrame:
    """Return layouts, without other fields, with their number of devices and their place.

    To sort all rows by so many columns takes longer than to predict them.
    """
    efforts = {name: i for i, name in enumerate(_options("recompute"))}
    effort = pl.col("recompute").replace_strict(efforts, return_dtype=pl.Int64)
    ordered = distinct.with_columns(
        devices=pl.reduce(operator.mul, [pl.col(name) for name in MESH])
    )
    ordered = ordered.sort("devices", effort, *SIMPLEST, "pipeline_schedule")
    return ordered.with_row_index("place")


def check(checked: CheckedSweep) -> None:
    """Raise InputError for every base of a sweep that its numbers of devices cannot share."""
    sweep, mistakes = checked.sweep, []
    for name, base in checked.bases.items():
        try:
            with _advice():
                grid = _grid(base, sweep.fixed, sweep.layouts, sweep.derive, {})
            why = None if any(groups(grid, sweep.layouts)) else _NO_LAYOUT
        except ValueError as error:
            why = str(error)
        if why:
            devices = show(sweep.layouts)
            mistakes.append(f"{checked.path}: layouts = {devices}: base = {name!r}: {why}")
    if mistakes:
        raise InputError(mistakes)


def of_sweep(checked: CheckedSweep) -> pl.DataFrame:
    """Return the layouts of a sweep's bases, with the fields in `fixed`.

    Columns: base, label, and those of `layouts`.
    """
    sweep, tables = checked.sweep, []
    for name, base in checked.bases.items():
        table = layouts(base, sweep.fixed, sweep.layouts, sweep.derive)
        named = pl.lit(str(name)).alias("base"), pl.lit(base.label).alias("label")
        tables.append(table.select(*named, pl.all()))
    return pl.concat(tables)


def groups(grid: Grid, devices: Sequence[int]) -> Iterator[Group]:
    """Yield the rows of a grid that model, run and numbers of devices allow, by their options.

    Raises ValueError if the bytes of a layout may exceed 64 bits.
    """

    def keeps(chunk: Chunk) -> np.ndarray:
        """Which meshes can become one of these numbers of devices; in the end, which are one."""
        sizes: list[Any] = grid.known(MESH, chunk)
        product = reduce(operator.mul, sizes, np.ones(chunk.rows, np.int64))
        if len(sizes) == len(MESH):
            return np.isin(product, devices)
        return np.any([n % product == 0 for n in devices], axis=0)

    for i, chunk in enumerate(grid.allowed(keeps)):
        fields = grid.values(chunk)
        if i == 0:
            _check_size(grid, fields)
        yield Group(grid, chunk, fields)


def _check_size(grid: Grid, fields: dict[str, Any]) -> None:
    """Raise ValueError if the devices that share the first layout need more than MOST_BYTES."""
    first = {n: v[0] if isinstance(v, pl.Series) else v for n, v in fields.items()}
    terms, _ = grid.formulas(lambda _, values: SimpleNamespace(**values), first, [PEAK])[PEAK]
    replicas = 1 if first["zero"] else first["data_parallel"]
    n_bytes = of_model(PEAK, terms) * math.prod(first[name] for name in MESH) // replicas
    if n_bytes > MOST_BYTES:
        raise ValueError(
            f"{PEAK} = {n_bytes:,} on all devices: at most {MOST_BYTES:,} are allowed; "
            "choose a smaller batch or length"
        )


@contextmanager
def _advice() -> Iterator[None]:
    """Say in an error of a grid what to choose."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{error}; choose numbers of devices with fewer divisors, or set sizes of the mesh"
        ) from None


def _grid(
    base: Base,
    chosen: Mapping[str, Value],
    devices: Sequence[int],
    derive: Mapping[str, str],
    axes: Axes,
) -> Grid:
    """Return the grid of all combinations of the layout's fields. Raises ValueError."""
    batches = axes.get("batch", [chosen.get("batch", base.fields.get("batch", 1))])
    sizes = divisors(*devices)
    of_layout: dict[str, Sequence[Value]] = dict.fromkeys(MESH, sizes)
    if not {**base.fields, **chosen}.get("n_expert"):
        of_layout["expert_parallel"] = [1]
    of_layout |= {name: _options(name) for name in OPTIONS} | {RANK: RANKS}
    of_layout["recompute"] = [s for s in _options("recompute") if s != BY_OPERATION]
    if axes and chosen.get(STAGES, 1) == 1:
        of_layout["pipeline_schedule"] = [s for s in _options("pipeline_schedule") if s != TURNS]
    of_layout["n_microbatch"] = divisors(*map(int, batches))
    swept = {*of_layout, *axes}.difference(chosen)
    values, rules = settled(base, dict(chosen), dict(derive))
    known = {name: value for name, value in values.items() if name not in swept}
    for name, rule in rules.items():
        if rule.names <= known.keys():
            known[name] = derived(name, rule, known)
    of_layout |= {name: _possible(base, known, name, sizes) or [1] for name in swept & {*MESH}}
    sweep = Sweep.model_validate(
        {
            "title": "layouts",
            "question": "Which layouts are there?",
            "base": base.name,
            "fixed": dict(chosen),
            "grid": {
                name: list(values)
                for name, values in {**of_layout, **axes}.items()
                if name not in chosen
            },
            "derive": ({} if STAGES in chosen else {STAGES: INTERLEAVED}) | dict(derive),
            "constraints": [
                f"pipeline_parallel > 1 or {RANK} == 'first'",
                # The batch is not divided but among stages, or as it is chosen.
                *["pipeline_parallel > 1 or n_microbatch == 1"][: "n_microbatch" not in chosen],
            ],
            "measure": Measure(quantities=[PEAK], device="none"),
        }
    )
    return Grid(base.name, base, sweep)


def _possible(base: Base, known: Mapping[str, Value], name: str, sizes: Iterable[int]) -> list[int]:
    """Return the sizes that the known fields allow. Without the others a grid is too large."""
    of_run = quantity_constraints(base.family, (PEAK,))
    checks = [constraint for constraint in of_run if constraint.names - known.keys() == {name}]
    return [size for size in sizes if not first_mistake(checks, {**known, name: size})]


def _options(name: str) -> list[Value]:
    annotation = RunConfig.model_fields[name].annotation
    return [False, True] if annotation is bool else list(get_args(annotation))
