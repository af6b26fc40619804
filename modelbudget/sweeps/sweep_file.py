"""Schema of sweep files; `configs/file_keys.yaml` says what their keys mean.

`workflow/schemas/sweep.schema.json` is generated from both.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from modelbudget.architecture.base import Count, Size
from modelbudget.architecture.run_config import in_full
from modelbudget.common.expressions import TextOrNumber
from modelbudget.common.strict import Strict
from modelbudget.common.validation_messages import show
from modelbudget.sweeps.chart_choice import ChartChoice, answer_mistakes, chart_mistakes
from modelbudget.sweeps.quantity_names import (
    FITS,
    OF_CONVENTION,
    OF_DEVICE,
    OF_INFERENCE,
    OF_PARAMETERS,
    OF_PROCESS,
    OF_TRAINING,
    Quantity,
)

MAX_POINTS = 100_000
MAX_PREDICTIONS = 100_000_000
"""Most points of a sweep that is predicted and not measured."""

Value = bool | int | str


class Range(Strict):
    """Sizes between two ends, both included, each rounded to a multiple that is not outside."""

    start: Count = Field(alias="from")
    stop: Count = Field(alias="to")
    steps: int = Field(ge=2, le=MAX_POINTS)
    scale: Literal["linear", "logarithmic"] = "linear"
    multiple_of: Count = 1

    @model_validator(mode="after")
    def rises(self) -> Self:
        if self.start >= self.stop:
            raise ValueError(f"from ({self.start}) must be less than to ({self.stop})")
        unit = self.multiple_of
        if self.stop // unit * unit < self.start:
            raise ValueError(f"no multiple of {unit} from {self.start} to {self.stop}")
        return self

    def values(self) -> list[int]:
        """Return the sizes in ascending order, without duplicates from rounding."""
        return list(_values(self.start, self.stop, self.steps, self.scale, self.multiple_of))


@cache
def _values(start: int, stop: int, steps: int, scale: str, unit: int) -> tuple[int, ...]:
    """Compute with integers at the ends and on a linear scale: floats are inexact from 2^53 on."""

    def between(i: int) -> tuple[int, int]:
        """Return numerator and denominator of value `i`."""
        if i in (0, steps - 1):
            return (stop if i else start), 1
        if scale == "linear":
            return start * (steps - 1) + i * (stop - start), steps - 1
        share = i / (steps - 1)
        return math.exp(math.log(start) + share * math.log(stop / start)).as_integer_ratio()

    least, most = -(-start // unit), stop // unit
    multiples = (round(Fraction(n, d * unit)) for n, d in map(between, range(steps)))
    return tuple(sorted({min(max(least, multiple), most) * unit for multiple in multiples}))


Axis = Annotated[
    Annotated[Range, Tag("range")] | Annotated[list[Value], Field(min_length=1), Tag("list")],
    Discriminator(lambda value: "range" if isinstance(value, dict | Range) else "list"),
]


def _each_once(values: list) -> list:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"contains {twice[0]} {values.count(twice[0])} times; give it once")
    return values


Once = AfterValidator(_each_once)


def _rises(ends: list[int]) -> list[int]:
    if ends[0] > ends[1]:
        raise ValueError("the least must not exceed the most")
    return ends


Ends = Annotated[list[Size], Field(min_length=2, max_length=2), AfterValidator(_rises)]
Bound = Annotated[
    Annotated[Ends, Tag("list")] | Annotated[str, Tag("str")],
    Discriminator(lambda value: "str" if isinstance(value, str) else "list"),
]


SOLVED_TABLES = ("solutions", "frontier", "published")
"""Tables of the results of a sweep with `solve`."""


class Solve(Strict):
    """Which shapes of the grid are wanted, and which of these are best."""

    within: dict[str, Bound] = Field(min_length=1)
    best: dict[str, Literal["most", "least"]] = Field(min_length=1, max_length=4)

    @property
    def names(self) -> list[str]:
        """The names in both keys, each once."""
        return list(dict.fromkeys([*self.within, *self.best]))


Solvable = Literal["batch", "length", "n_layer"]


class Measure(Strict):
    """Which quantities to measure, and on which device."""

    quantities: Annotated[list[Quantity], Once] = Field(
        default=["parameters", "parameter_bytes"], min_length=1
    )
    device: Literal["auto", "meta", "cpu", "cuda", "none"] = "auto"
    memory_gb: float = Field(default=4, gt=0, le=1_000_000)
    memory_share: float = Field(default=0.4, gt=0, le=1)
    timeout_s: int = Field(default=600, ge=1, le=86_400)

    classes: Literal["sample", "all", "none"] = "sample"

    @field_validator("quantities")
    @classmethod
    def conventions_need_parameters(cls, quantities: list[Quantity]) -> list[Quantity]:
        """Add `parameters`, which conventions are measured by."""
        if "parameters" in quantities or not OF_CONVENTION & set(quantities):
            return quantities
        return ["parameters", *quantities]

    @model_validator(mode="after")
    def quantities_of_a_device_need_it(self) -> Self:
        for of_device, allowed, what in (
            (OF_PROCESS, ("auto", "cpu"), "memory of a CPU"),
            (OF_DEVICE, ("cuda",), "of a CUDA device"),
        ):
            named = next((name for name in self.quantities if name in of_device), None)
            if named and self.device not in allowed:
                names = ", ".join(allowed)
                raise ValueError(f"device = {self.device!r}: {named} is {what}; allowed: {names}")
        return self

    def of_reference(self) -> frozenset[str]:
        """Return the quantities that classes of `transformers` are traced for.

        Empty if nothing is measured of training or inference: counting alone needs no trace.
        """
        if self.classes == "none":
            return frozenset()
        wanted = frozenset(self.quantities) - {"unsupported_ops", "request_bytes"}
        traced = OF_TRAINING | OF_INFERENCE
        return wanted & (traced | OF_PARAMETERS) if wanted & traced else frozenset()

    def decisive(self) -> dict:
        """Return the settings that affect measurements."""
        measured = [name for name in self.quantities if name not in OF_CONVENTION]
        return self.model_dump(exclude={"timeout_s", "classes"}) | {"quantities": measured}


class Sweep(Strict):
    """One sweep: a question, a base, and the points to evaluate."""

    title: str = Field(min_length=1, max_length=200)
    question: str = Field(min_length=1, max_length=20_000)
    base: str | None = None
    fixed: dict[str, Value] = Field({})
    grid: dict[str, Axis] = Field({})
    models: Literal["all"] | None = None
    points: list[dict[str, Value]] = Field([])
    derive: dict[str, TextOrNumber] = Field({})
    constraints: list[str] = Field([], max_length=100)
    measure: Measure = Measure()
    fit: Annotated[list[Solvable], Once] = Field([])
    fit_measured_on: list[str] = Field([])
    layouts: Annotated[list[Annotated[int, Field(ge=1, le=1_000_000)]], Once] = Field(
        [], max_length=100
    )
    solve: Solve | None = None
    charts: list[ChartChoice] = Field([], max_length=20)
    answered_by: list[str] = Field([], max_length=4)
    headline: str | None = None
    order: int = 100
    default: bool = True

    @field_validator("base", mode="before")
    @classmethod
    def is_one_base(cls, base: Any) -> Any:
        if isinstance(base, list):
            raise ValueError("must be one; several are an axis, as grid: {base: [a, b]}")
        return base

    @field_validator("fixed", "grid", "points")
    @classmethod
    def has_full_names(cls, values: Any) -> Any:
        """Return the values, lists of them, or points with dtypes by their full names."""
        if isinstance(values, list):
            return [cls.has_full_names(value) for value in values]
        if not isinstance(values, dict):
            return in_full(values)
        return {k: v if k == "label" else cls.has_full_names(v) for k, v in values.items()}

    @property
    def predicts_alone(self) -> bool:
        """Whether nothing is instantiated."""
        return self.measure.device == "none"

    def axes(self) -> dict[str, list[Value]]:
        """Return the grid's axes with ranges written out."""
        return {
            name: list[Value](axis.values()) if isinstance(axis, Range) else axis
            for name, axis in self.grid.items()
        }

    def too_many_values(self) -> str | None:
        """Return a mistake if the grid's axes have too many values to be written out."""
        n = sum(axis.steps if isinstance(axis, Range) else len(axis) for axis in self.grid.values())
        too_many = f"grid: {n:,} values in all; at most {MAX_POINTS:,} are allowed"
        return too_many if n > MAX_POINTS else None

    def gaps(self) -> Iterator[tuple[set[str], str]]:
        """Yield what is missing: the keys concerned, and the mistake."""
        if not self.grid and not self.points and not self.models:
            what = "grid and points are both empty: give one of them, or models: all"
            yield {"grid", "points", "models"}, what
        if self.grid and self.base is None and "base" not in self.grid:
            yield {"grid", "base"}, "base: missing; a grid needs one"
        for i, point in enumerate(self.points):
            if self.base is None and "base" not in point:
                what = f"points[{i}].base: missing; the sweep has no base of its own"
                yield {"base", "points"}, what
        measured = set(self.measure.quantities)
        if self.fit and not any(needs <= measured for needs in FITS.values()):
            yield (
                {"measure", "fit"},
                "fit: needs peak_training_bytes, peak_inference_bytes, or parameter_bytes and "
                "cache_bytes, in measure.quantities",
            )
        if self.fit_measured_on and not self.fit:
            yield {"fit", "fit_measured_on"}, "fit_measured_on: needs fit"

    def contradictions(self) -> Iterator[tuple[set[str], str]]:
        """Yield contradictions: the keys concerned, and the mistake."""
        yield from chart_mistakes(
            self.charts, self.axes(), self.points, self.derive, self.measure.quantities
        )
        bases = [self.base, *self.axes().get("base", ()), *(p.get("base") for p in self.points)]
        yield from answer_mistakes(
            self.answered_by, len(self.charts), self.measure.quantities, list(map(str, bases))
        )
        if self.charts and (self.predicts_alone or self.solve):
            setting = "solve" if self.solve else "measure.device: none"
            yield {"charts", "solve", "measure"}, f"charts: not available with {setting}"
        alone = ("points", "models", "headline", "fit", "layouts", "solve")
        used = [name for name in alone if getattr(self, name)]
        if self.predicts_alone and used:
            yield (
                {"measure", used[0]},
                f"{used[0]}: not available with measure.device: none; allowed: a grid",
            )
        if self.solve and (refused := [name for name in used if name != "solve"]):
            what = f"{refused[0]}: not available with solve; allowed: a grid"
            yield {"solve", refused[0]}, what
        if self.solve and self.measure.device in ("cpu", "cuda"):
            what = f"measure.device = {self.measure.device!r}: solve has no points before the run"
            yield {"solve", "measure"}, f"{what}; allowed: auto, meta"
        if "base" in self.grid and self.base is not None:
            yield {"grid", "base"}, f"base = {show(self.base)}: is a grid axis too; keep one"
        first: dict[Any, int] = {}
        for i, point in enumerate(self.points):
            same = first.setdefault(point.get("label", tuple(sorted(point.items()))), i)
            if same != i:
                what = f".label = {show(point['label'])}" if "label" in point else ""
                yield {"points"}, f"points[{i}]{what}: is that of points[{same}] too; keep one"
        in_points = {name for point in self.points for name in point}
        for name in sorted(self.derive.keys() & (self.fixed.keys() | self.grid.keys() | in_points)):
            what = f"derive.{name}: is set by fixed, grid or points too; keep one"
            yield {"derive"}, what
        for name in sorted(self.fixed.keys() & self.grid.keys()):
            yield {"fixed", "grid"}, f"fixed.{name}: is a grid axis too; keep one"
