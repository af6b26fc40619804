"""The largest batch, length or depth that fits into a device's memory, solved from formulas."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

import polars as pl

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.record import MAX_DEPTH
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.run_values import parts_of_length, tokens
from modelbudget.catalogue.accelerators import Accelerator, named
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS, implementations
from modelbudget.components.mixers.sliding_attention import ALIGNED
from modelbudget.predict import prediction_or_reason
from modelbudget.predict.formula import formula
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.compared import not_compared, not_compared_at
from modelbudget.sweeps.device_defaults import KERNEL, Device, device_defaults, mask_of_heads
from modelbudget.sweeps.point import Point
from modelbudget.sweeps.quantity_names import FITS

ENDLESS = 2**40
"""Upper bound of the search: a value of one less stands for any."""

Model = tuple[Architecture, RunConfig]


def together(quantities: Iterable[Iterable[int]], purpose: str) -> int:
    """Add the quantities of a purpose, in bytes. Phases do not overlap: the largest counts."""
    combine = sum if purpose == "weights_and_cache" else max
    return sum(combine(values) for values in quantities)


class Solution(NamedTuple):
    """The largest value of a field with which a model fits a device, and the next one.

    `value` is 0 if the model does not fit at all. `beyond` is None if there is no next value to
    check: the model does not allow it, or no formula covers it (`bound`).
    """

    value: int
    beyond: int | None
    bound: Literal["model", "formula"] | None = None


class Cell(NamedTuple):
    """The solution for one point of a sweep, purpose, device and field.

    `of_class` is the solution for the same model computed as its class in `transformers` does, if
    the settings of that class are known.
    """

    point: Point
    purpose: str
    device: Accelerator
    field: str
    solution: Solution | None
    of_class: Solution | None = None

    @property
    def largest(self) -> Model | None:
        """The model at the solution; None if there is none."""
        value = self.solution and self.solution.value
        return at(self.point.model, self.field, value) if value and value < ENDLESS - 1 else None

    @property
    def beyond(self) -> Model | None:
        """The model at the next value, which is too large; None if there is none."""
        value = self.solution and self.solution.beyond
        return at(self.point.model, self.field, value) if value else None


def at(model: Model, field: str, value: int) -> Model:
    """Return the model with another batch, length or depth.

    With another length, a microbatch has one sequence.
    """
    architecture, run = model
    if field == "n_layer":
        return architecture.model_copy(update={field: value}), run
    one_sequence = {"batch": run.n_microbatch} if field == "length" else {}
    return architecture, run.model_copy(update=one_sequence | {field: value})


def at_default(model: Model, field: str, value: int, device: Device = "cuda") -> Model:
    """Return the model as `at` does, with the attention kernel of a device at that value."""
    architecture, run = at(model, field, value)
    kernel = device_defaults(type(architecture), device)[KERNEL](vars(architecture) | vars(run))
    return architecture, run.model_copy(update={KERNEL: kernel})


def as_class(
    model: Model, class_name: str | None, purpose: str, file: str | None = None
) -> Model | None:
    """Return the model with the run settings of its class in `transformers`.

    None if the formulas of the purpose were not compared with the class, if its settings do not
    apply to the architecture, contradict the run's other settings, or if the run has settings of
    another implementation already. `file` is the config.json of the architecture, as JSON.
    """
    architecture, run = model
    known = implementations()[TRANSFORMERS]
    if class_name is None or class_name not in known.classes or run.implementation != OURS:
        return None
    try:
        config = class_config(class_name, architecture, file)
        of_class = known.of_class(class_name, config) | {"implementation": TRANSFORMERS}
        run_of_class = RunConfig.model_validate(run.model_dump() | of_class)
    except ValueError:
        return None
    refused = run_mistake(architecture, run_of_class) or any(
        not_compared(quantity, class_name, config, architecture, run_of_class)
        for quantity in FITS[purpose]
    )
    return None if refused else (architecture, run_of_class)


def depth(model: Model) -> int:
    """Return the number of layers of a model."""
    fields = ("n_layer", "n_encoder_layer", "n_decoder_layer")
    return sum(getattr(model[0], field, 0) for field in fields)


def needed(model: Model, purpose: str) -> int | None:
    """Predict the bytes that a purpose needs; None if no formula covers the model."""
    values = []
    for quantity in FITS[purpose]:
        terms, holds = formula(type(model[0]), quantity, *model)
        if not holds:
            return None
        values.append([term.total for term in terms.values()])
    return together(values, purpose)


def divisor(model: Model, field: str) -> int:
    """Return the number that divides every value of a field that the run allows.

    With masks also that of their rows: between its multiples masks are copied, and a longer
    sequence may need less.
    """
    run = model[1]
    match field:
        case "length":  # of one sequence
            aligned = ALIGNED if _copies_masks(*model) else 1
            return math.lcm(aligned, run.loss_chunks, run.context_parallel * parts_of_length(run))
        case "batch":
            in_chunks = run.loss_chunks // math.gcd(run.loss_chunks, run.length)
            return math.lcm(run.n_microbatch, in_chunks)
        case _:
            return run.pipeline_parallel


def _copies_masks(architecture: Architecture, run: RunConfig) -> bool:
    """Whether memory-efficient attention has masks at some length: of a window, or of heads."""
    of_heads = run.attention_kernel == "efficient" and mask_of_heads(architecture, run) is not None
    return of_heads or getattr(architecture, "window", 0) > 0


def solve(
    model: Model, field: str, purpose: str, room: int, at: Callable[..., Model] = at
) -> Solution | None:
    """Find the largest value of `field` that fits into `room` bytes; None without a formula.

    Memory is monotonic in each field, and mostly a line: the search takes the value at which the
    line through two others meets the room, and sometimes the middle, in multiples of what the run
    divides the field by. `at` gives the model with another value.
    """
    if field == "n_layer" and not hasattr(model[0], field):
        return None
    step = divisor(model, field)
    least = max(1, getattr(model[0], "n_dense_layer", 0)) if field == "n_layer" else 1
    least = step * math.ceil(least / step)
    if needed(at(model, field, least), purpose) is None:
        return None

    most = MAX_DEPTH if field == "n_layer" else ENDLESS - 1

    def is_allowed(value: int) -> bool:
        return value <= most and not run_mistake(*at(model, field, value))

    @cache
    def n_bytes(value: int) -> int | float:
        known = needed(at(model, field, value), purpose) if is_allowed(value) else None
        return math.inf if known is None else known

    def meets_room(x: int, y: int) -> int:
        """Return where the line through two values meets the room; without one, the middle."""
        more = n_bytes(y) - n_bytes(x)
        if not 0 < more < math.inf:
            return (x + y) // 2
        return x + int((room - n_bytes(x)) * (y - x) // more)

    if n_bytes(least) > room:
        return Solution(0, least)
    value_of_model = (vars(model[0]) | vars(model[1]))[field] // step * step
    before, low, high = least, least, max(2 * least, value_of_model)
    while n_bytes(high) <= room:
        beyond = min(meets_room(low, high) // step * step + step, 8 * high)
        before, low, high = low, high, max(2 * high, beyond)
    turns = itertools.cycle(("between", "beyond", "between", "beyond", "middle"))
    while high - low > step:
        turn = next(turns)
        guess = low + (high - low) // 2
        if turn == "between":
            guess = meets_room(low, high)
        elif turn == "beyond" and before < low:
            guess = meets_room(before, low)
        guess = min(max(low + (guess - low) // step * step, low + step), high - step)
        before, low, high = (low, guess, high) if n_bytes(guess) <= room else (before, low, guess)
    if not is_allowed(high):
        return Solution(ENDLESS - 1 if high >= ENDLESS else low, None, "model")
    return Solution(low, None, "formula") if n_bytes(high) == math.inf else Solution(low, high)


def solved(
    model: Model, purpose: str, room: int, at: Callable[..., Model] = at
) -> dict[str, Solution]:
    """Return the largest batch and, of one sequence, the largest length; see `solve`."""
    solutions = {field: solve(model, field, purpose, room, at) for field in ("batch", "length")}
    return {field: solution for field, solution in solutions.items() if solution is not None}


def cells(
    points: Iterable[Point],
    quantities: Sequence[str],
    fields: list[str],
    devices: list[Accelerator],
) -> Iterator[Cell]:
    """Solve a sweep's `fit` for each of its points, purposes, fields and devices.

    Purposes are those whose quantities the sweep measures. Of points that differ only in a batch or
    a length that is solved for, the one with most tokens is solved.
    """
    distinct: dict[Model, Point] = {}
    for point in sorted(points, key=lambda point: tokens(point.run)):
        model = point.model
        for field in ("batch", "length"):
            model = at(model, field, 1) if field in fields else model
        distinct[model] = point
    purposes = [purpose for purpose, needs in FITS.items() if needs <= set(quantities)]
    for point in sorted(distinct.values(), key=lambda point: point.point):
        for purpose in purposes:
            is_shown = not _not_compared(point, purpose)
            for field in fields:
                for device in devices:
                    solution = None
                    if is_shown:
                        solution = solve(point.model, field, purpose, device.bytes)
                    as_built = as_class(point.model, point.transformers, purpose, point.config)
                    of_class = as_built and solve(as_built, field, purpose, device.bytes)
                    yield Cell(point, purpose, device, field, solution, of_class)


def measured_on(summary: Mapping, devices: Sequence[Accelerator]) -> list[Accelerator]:
    """Return the devices on which a sweep's `fit` is measured: all, unless it names some."""
    chosen = [named(name, devices) for name in summary["fit_measured_on"]]
    return [device for device in devices if not chosen or device in chosen]


def _not_compared(point: Point, purpose: str) -> str | None:
    """Return why no formula answers for the class that a point names; None if one does."""
    reasons = (
        not_compared_at(quantity, point.transformers, point.config, *point.model)
        for quantity in FITS[purpose]
    )
    return next(filter(None, reasons), None)


def _not_solved(cell: Cell) -> str:
    """Return why a cell has no solution."""
    a, run = cell.point.model
    reasons = (prediction_or_reason.why_not(quantity, a, run) for quantity in FITS[cell.purpose])
    other = f"{a.name()} has no {cell.field}, or no formula where it is 1"
    return _not_compared(cell.point, cell.purpose) or next(filter(None, reasons), other)


def totals(measured: pl.DataFrame, purpose: str) -> dict[tuple[str, str], int]:
    """Add measured quantities to the bytes that a purpose needs, by architecture and run digest."""
    models = measured.partition_by("architecture", "run", as_dict=True)
    return {
        digests: together((of["value"] for of in rows.partition_by("quantity")), purpose)
        for digests, rows in models.items()
    }


SCHEMA = {
    "point": pl.String, "label": pl.String, "purpose": pl.String, "device": pl.String,
    "memory": pl.Int64, "field": pl.String, "value": pl.Int64, "value_of_class": pl.Int64,
    "bound": pl.String, "bytes": pl.Int64, "bytes_beyond": pl.Int64, "measured": pl.Int64,
    "measured_beyond": pl.Int64, "confirmed": pl.Boolean, "failure": pl.String,
}  # fmt: skip


def fit_table(
    cells: list[Cell], measured: dict[tuple[str, Model], int], missing: dict[tuple[str, Model], str]
) -> pl.DataFrame:
    """Return one row for each cell.

    `measured` holds bytes by purpose and model, and `missing` the reasons where there are none.

    Columns: point, label, purpose, device, memory (bytes), field, value (0: none fits; null: no
    formula), value_of_class (the same, computed as the model's class in `transformers` does; null
    if its settings are not known), bound (what limits the value if not the memory: the model or
    the formula), bytes and bytes_beyond (predicted, at the value and at the next one), measured
    and measured_beyond, confirmed (whether the measurement agrees; null if nothing was measured),
    failure (why there is no formula or no measurement).
    """
    return pl.DataFrame([_row(cell, measured, missing) for cell in cells], SCHEMA)


def _row(cell: Cell, measured: dict, missing: dict) -> dict:
    largest, beyond = cell.largest, cell.beyond
    n_bytes = measured.get((cell.purpose, largest)) if largest else None
    bytes_beyond = measured.get((cell.purpose, beyond)) if beyond else None
    fits = [n_bytes <= cell.device.bytes] if n_bytes is not None else []
    fits += [bytes_beyond > cell.device.bytes] if bytes_beyond is not None else []
    reasons = [missing.get((cell.purpose, model)) for model in (largest, beyond) if model]
    return {
        "point": cell.point.point,
        "label": cell.point.label,
        "purpose": cell.purpose,
        "device": cell.device.name,
        "memory": cell.device.bytes,
        "field": cell.field,
        "value": cell.solution and cell.solution.value,
        "value_of_class": cell.of_class and cell.of_class.value,
        "bound": cell.solution and cell.solution.bound,
        "bytes": needed(largest, cell.purpose) if largest else None,
        "bytes_beyond": needed(beyond, cell.purpose) if beyond else None,
        "measured": n_bytes,
        "measured_beyond": bytes_beyond,
        "confirmed": all(fits) if fits else None,
        "failure": next(filter(None, reasons), None) if cell.solution else _not_solved(cell),
    }
