"""Expansion of a sweep file to points: every combination, resolved to a complete architecture.

Finds all mistakes of a file before a run starts.
"""

import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, check_all
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import MASKS, RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.terms import total
from modelbudget.catalogue.models import Base, Catalogue, configured_base
from modelbudget.common.errors import InputError
from modelbudget.common.expressions import Expression
from modelbudget.common.files import load_yaml
from modelbudget.common.mistakes import SCHEMA, describe, show
from modelbudget.common.suggestions import did_you_mean, offered
from modelbudget.families import families
from modelbudget.huggingface.translate import keys_by_field
from modelbudget.sweep.overflow import check_totals, may_overflow
from modelbudget.sweep.sweep_file import (
    MAX_POINTS,
    MAX_PREDICTIONS,
    OF_ALLOCATOR,
    OF_INFERENCE,
    OF_RUN,
    OF_TRAINING,
    Sweep,
    Value,
)

NAMES_OF_A_POINT = ("base", "label")
FIELDS_OF_RUN = RunConfig.model_fields.keys()
MAX_SHOWN = 20
MAX_FOUND = 100
"""Mistakes after which the search for more ends: each takes milliseconds."""
MAX_ROUNDS = 3
"""How often mistakes are removed from a sweep to find further ones."""
COSMETIC = {"title", "question", "headline", "order", "fit"}
"""Keys that do not affect points."""
PROGRESS_AFTER_S = 1.5
"""Seconds after which a terminal shows progress."""


class Point(NamedTuple):
    """One point of a sweep: its values on the axes, its architecture, and its run settings."""

    point: str
    label: str
    base: str
    axes: dict[str, Value]
    architecture: Architecture
    transformers: str | None
    run: RunConfig


class Expanded(NamedTuple):
    """A sweep with its points; `dropped` is the number of combinations that broke a constraint."""

    path: Path
    name: str
    sweep: Sweep
    points: list[Point]
    dropped: int
    files: list[Path]


class Mistakes:
    """Collects the mistakes of one sweep file, without duplicates across points."""

    def __init__(self, path: Path):
        self.path = path
        self.points: dict[str, tuple[str, int]] = {}

    def add(self, line: str, point: str = "", times: int = 1) -> None:
        """Add a mistake found at `times` points, of which `point` is the first."""
        first, before = self.points.get(line, (point, 0))
        self.points[line] = first, before + times
        if len(self.points) == MAX_FOUND:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        lines = [f"{line}{_at(*points)}" for line, points in self.points.items()]
        if len(lines) > MAX_SHOWN:
            least = "at least " if len(lines) == MAX_FOUND else ""
            lines[MAX_SHOWN:] = [f"and {least}{len(lines) - MAX_SHOWN:,} more mistakes"]
        if lines:
            raise InputError([f"{self.path}: {line}" for line in lines])


class Asked(NamedTuple):
    """A sweep whose names and values are valid; its points are not expanded yet."""

    path: Path
    sweep: Sweep
    bases: dict[str, Base]
    catalogue: Catalogue
    mistakes: Mistakes

    @property
    def files(self) -> list[Path]:
        """The config.json files used as bases."""
        return [self.path.parent / name for name in self.bases if _is_file(name)]


def _at(first: str, times: int) -> str:
    more = f" and {times - 1:,} more points" if times > 1 else ""
    return f" (at {first}{more})" if first else ""


def _read(path: Path, mistakes: Mistakes) -> tuple[Sweep | None, set[str]]:
    """Read a sweep without its invalid parts, so that the rest is checked too.

    Returns it with the top-level keys that contain mistakes.
    """
    data = load_yaml(path)
    try:
        return Sweep.model_validate(data), set()
    except ValidationError as error:
        for line in describe(error, _keys_of_sweep(), ("range", "list", "bool", "int", "str")):
            mistakes.add(line)
        errors = error.errors(include_url=False)
    wrong = {one["loc"][0] for one in errors}
    for _ in range(MAX_ROUNDS):
        places = [_innermost(data, one["loc"]) for one in errors]
        for holder, key in filter(None, places):
            holder.pop(key, None)
        try:
            return Sweep.model_validate({"title": "-", "question": "-"} | data), wrong
        except ValidationError as error:
            errors = error.errors(include_url=False)
    return None, wrong


def _innermost(data: dict, path: tuple) -> tuple[dict, str] | None:
    """Return the innermost key on the path to a mistake, and the mapping that contains it.

    Never an index of a list, so that later items keep their numbers. Steps that only name a type of
    a union are skipped.
    """
    found, at = None, data
    for step in path:
        if isinstance(at, dict) and step in at:
            found, at = (at, step), at[step]
        elif isinstance(at, list) and isinstance(step, int) and step < len(at):
            at = at[step]
    return found


def expand(path: Path, catalogue: Catalogue) -> Expanded:
    """Return every point of the sweep in `path`. Raises InputError with all mistakes."""
    return expanded(read(path, catalogue))


def read(path: Path, catalogue: Catalogue) -> Asked:
    """Read the sweep in `path`.

    Raises InputError with all mistakes that affect points. Mistakes that do not are raised by
    `expanded`, together with those of points.
    """
    mistakes = Mistakes(path)
    sweep, wrong = _read(path, mistakes)
    before = len(mistakes.points)
    bases = {}
    if sweep is not None:
        if reason := sweep.too_many_values():
            mistakes.add(reason)
            mistakes.raise_if_any()
        unknown = wrong - Sweep.model_fields.keys()
        for keys, line in [*sweep.contradictions(), *(() if unknown else sweep.gaps())]:
            if not keys & wrong:
                mistakes.add(line)
        bases = _bases(sweep, catalogue, mistakes)
        _check_names_and_values(sweep, bases, mistakes)
    if wrong - COSMETIC or len(mistakes.points) > before:
        mistakes.raise_if_any()
    return Asked(path, sweep, bases, catalogue, mistakes)


def expanded(asked: Asked) -> Expanded:
    """Return every point. Raises InputError with all mistakes."""
    path, sweep, _, catalogue, mistakes = asked
    axes, given = sweep.axes(), _given(sweep, catalogue)
    n_points = math.prod(len(values) for values in axes.values()) * bool(axes) + len(given)
    if n_points > MAX_POINTS:
        mistakes.add(
            f"grid: {n_points:,} points; at most {MAX_POINTS:,} are allowed, or up to "
            f"{MAX_PREDICTIONS:,} that are predicted and not measured (measure.device: none)"
        )
        mistakes.raise_if_any()
    before = len(mistakes.points)
    points, dropped = _points(asked, axes, given, n_points, mistakes)
    if len(mistakes.points) > before:
        mistakes.raise_if_any()
    if not points:
        mistakes.add(f"constraints: drop all {dropped:,} points; nothing is left to measure")
    elif sweep.headline not in {None, *(point.label for point in points)}:
        hint = did_you_mean(sweep.headline, [point.label for point in points])
        mistakes.add(f"headline = {show(sweep.headline)}: no point has this label{hint}")
    mistakes.raise_if_any()
    return Expanded(path, path.stem, sweep, points, dropped, asked.files)


def _given(sweep: Sweep, catalogue: Catalogue) -> list[dict[str, Value]]:
    """Return the points listed one by one, after all named models if `models: all` is given."""
    names = [name for name, base in catalogue.bases.items() if base.model] if sweep.models else []
    return [*({"base": name} for name in names), *sweep.points]


def _is_file(base: str) -> bool:
    return base.endswith(".json")


def _keys_of_sweep() -> list[str]:
    nested = (Sweep, Sweep.model_fields["measure"].annotation)
    keys = [name for model in nested for name in model.model_fields]
    return [*keys, "from", "to", "steps", "scale", "multiple_of"]


def _bases(sweep: Sweep, catalogue: Catalogue, mistakes: Mistakes) -> dict[str, Base]:
    """Return every base of the sweep by its name in the file."""
    bases = {
        point["base"]: catalogue[point["base"]]
        for point in _given(sweep, catalogue)
        if sweep.models and point.get("base") in catalogue.bases
    }
    named = {"base": sweep.base} if sweep.base is not None else {}
    named |= {f"grid.base[{i}]": name for i, name in enumerate(sweep.axes().get("base", ()))}
    named |= {f"points[{i}].base": p["base"] for i, p in enumerate(sweep.points) if "base" in p}
    for key, name in named.items():
        try:
            bases[name] = _base(str(name), catalogue, mistakes.path.parent)
        except InputError as error:
            for line in error.mistakes:
                mistakes.add(f"{key}: {line}")
        except ValueError as error:
            mistakes.add(f"{key} = {show(name)}: {error}")
    return bases


def _base(name: str, catalogue: Catalogue, folder: Path) -> Base:
    """Return a base by name or file. Raises ValueError, or InputError for a file."""
    if not _is_file(name):
        return catalogue[name]
    base = configured_base(folder, name)
    try:
        named_architecture(base)
    except ValueError as error:
        keys = keys_by_field(base.transformers) if base.transformers else {}
        raise InputError(
            [f"{folder / name}: {_with_keys(line, keys)}" for line in str(error).splitlines()]
        ) from None
    return base


def _with_keys(line: str, keys: dict[str, str]) -> str:
    """Append to a line about fields the keys that they have in a config.json."""
    words = set(re.findall(r"\w+", line))
    listed = ", ".join(f"{f} is {key}" for f, key in keys.items() if f in words and f != key)
    return f"{line} ({listed})" if listed else line


def _check_names_and_values(sweep: Sweep, bases: dict[str, Base], mistakes: Mistakes) -> None:
    """Add mistakes for unknown fields and for values that their field does not allow.

    If a base is unknown, fields of all families are allowed.
    """
    kinds = [*{base.family.name(): base.family for base in bases.values()}.values(), RunConfig]
    named = {sweep.base, *sweep.axes().get("base", ()), *(p.get("base") for p in sweep.points)}
    certain = bases and named - {None} <= bases.keys()
    fields = {
        name
        for kind in (kinds if certain else [*families().values(), RunConfig])
        for name in kind.model_fields
    }
    given = [(f"fixed.{name}", name, value) for name, value in sweep.fixed.items()]
    for name, values in sweep.axes().items():
        if name != "base":
            given += [(f"grid.{name}[{i}]", name, value) for i, value in enumerate(values)]
    for i, point in enumerate(sweep.points):
        given += [(f"points[{i}].{n}", n, v) for n, v in point.items() if n not in NAMES_OF_A_POINT]
    for key, name, value in given:
        if name not in fields:
            key = key.partition("[")[0] if key.startswith("grid") else key
            mistakes.add(_unknown_field(key, name, fields))
        for kind in kinds:
            if name in kind.model_fields:
                try:
                    field_value(kind, name, value, key)
                except ValueError as error:
                    mistakes.add(str(error))
                break
    for name, values in sweep.axes().items():
        for value, n in Counter(map(repr, values)).items():
            if n > 1:
                mistakes.add(f"grid.{name}: contains {value} {n} times; give it once")
    for name, text in sweep.derive.items():
        if name not in fields:
            mistakes.add(_unknown_field(f"derive.{name}", name, fields))
        _check_expression(f"derive.{name}", text, fields, mistakes)
    for i, text in enumerate(sweep.constraints):
        _check_expression(f"constraints[{i}]", text, fields, mistakes)


def _unknown_field(key: str, name: str, fields: set[str]) -> str:
    return f"{key}: unknown field{offered(name, sorted(fields), SCHEMA)}"


@cache
def _adapter(kind: type[Record], name: str) -> TypeAdapter:
    field = kind.model_fields[name]
    return TypeAdapter(field.rebuild_annotation(), config={"strict": True})


def field_value(kind: type[Record], name: str, value: Value, key: str = ""):
    """Convert a value to the type of a field. Raises ValueError naming the key or the field."""
    try:
        return _adapter(kind, name).validate_python(value)
    except ValidationError as error:
        raise ValueError("\n".join(describe(error, within=key or name))) from None


def _check_expression(key: str, text: str, fields: set[str], mistakes: Mistakes) -> None:
    try:
        names = expression_of(text).names
    except ValueError as error:
        mistakes.add(f"{key}: {error}")
        return
    for name in sorted(names - fields):
        mistakes.add(_unknown_field(f"{key} = {show(text)}: {name}", name, fields))


@cache
def expression_of(text: str) -> Expression:
    return Expression(text)


def _points(
    asked: Asked,
    axes: dict[str, list[Value]],
    given: list[dict[str, Value]],
    n_points: int,
    mistakes: Mistakes,
) -> tuple[list[Point], int]:
    grid = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    chosen = itertools.chain(grid if axes else (), given)
    found, dropped = [], 0
    for number, settings in enumerate(_with_progress(chosen, n_points, asked.path), start=1):
        try:
            point = point_at(number, settings, asked.sweep, asked.bases)
        except ValueError as error:
            for line in str(error).splitlines():
                mistakes.add(line, where(settings))
            continue
        if point is None:
            dropped += 1
        else:
            found.append((settings, point))
    _check_all_totals(found, asked.sweep.measure.quantities, mistakes)
    return [point for _, point in found], dropped


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


def _check_all_totals(
    found: list[tuple[dict, Point]], quantities: list[str], mistakes: Mistakes
) -> None:
    """Check totals of all points at once by bounds, and one by one only if bounds do not decide."""
    if may_overflow([(point.architecture, point.run) for _, point in found], quantities):
        for settings, point in found:
            try:
                check_totals(point.architecture, point.run, quantities)
            except ValueError as error:
                mistakes.add(str(error), where(settings))


def where(settings: dict[str, Value]) -> str:
    """Format a combination: `n_layer = 2, d_model = 64`."""
    return ", ".join(f"{name} = {show(value)}" for name, value in settings.items())


def point_at(number: int, settings: dict, sweep: Sweep, bases: dict[str, Base]) -> Point | None:
    """Build one point, or None if a constraint drops it. Raises ValueError."""
    base = bases[settings.get("base", sweep.base)]
    axes = {name: value for name, value in settings.items() if name != "label"}
    chosen = {name: value for name, value in axes.items() if name != "base"}
    values = resolve(base, sweep.fixed | chosen, sweep.derive)
    for text in sweep.constraints:
        if not expression_of(text)(values):
            return None
    label = settings.get("label") or _label(base, axes)
    of_run = {name: value for name, value in values.items() if name in FIELDS_OF_RUN}
    of_model = {name: value for name, value in values.items() if name not in of_run}
    follow = with_expression(base, sweep.derive)
    architecture, run = _record(base.family, of_model, follow), _record(RunConfig, of_run, follow)
    check_run(architecture, run, sweep)
    return Point(f"{number:06}", str(label), base.name, axes, architecture, base.transformers, run)


def _label(base: Base, axes: dict[str, Value]) -> str:
    chosen = {name: value for name, value in axes.items() if name != "base"}
    names = [base.label] if "base" in axes or not chosen else []
    return ", ".join(names + [f"{n} = {show(value).strip(chr(39))}" for n, value in chosen.items()])


def resolve(base: Base, chosen: dict[str, Value], derive: dict[str, str]) -> dict:
    """Return all fields of a point that are set or derived; derived ones as exact numbers.

    Precedence: chosen values, the sweep's `derive`, the base's fields, expressions of series and
    family. Raises ValueError.
    """
    values, rules = settled(base, chosen, derive)
    for name, expression in rules.items():
        if expression.names <= values.keys():  # else validation reports what is missing
            values[name] = derived(name, expression, values)
    return values


def derived(name: str, expression: Expression, values: dict):
    """Evaluate the expression of a field. Raises ValueError."""
    try:
        return expression(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def settled(
    base: Base, chosen: dict[str, Value], derive: dict[str, str]
) -> tuple[dict[str, Value], dict[str, Expression]]:
    """Return the fields that are set, and the expressions of the others in order of evaluation.

    Raises ValueError if expressions are circular.
    """
    family = base.family
    values = {k: v for k, v in base.fields.items() if k not in derive} | chosen
    rules = {
        name: text
        for name, text in (family.derivations() | RunConfig.derived | base.derive | derive).items()
        if name not in values
    }
    defaults = {name: value for name, value in _defaults(family).items() if name not in rules}
    order = _order(tuple(sorted(rules.items())))
    return defaults | values, {name: expression_of(rules[name]) for name in order}


@cache
def _defaults(family: type[Architecture]) -> dict[str, Value]:
    fields = family.model_fields | RunConfig.model_fields
    return {name: field.default for name, field in fields.items() if not field.is_required()}


@cache
def _order(rules: tuple[tuple[str, str], ...]) -> list[str]:
    names = dict(rules)
    graph = {name: expression_of(text).names & names.keys() for name, text in rules}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise ValueError(f"derive: {' → '.join(error.args[1])} is circular") from None


def whole(name: str, value):
    """Convert a derived value to an integer. Raises ValueError if it is a fraction."""
    if type(value) is not Fraction:  # faster than isinstance, which asks its abstract base class
        return value
    if value.denominator != 1:
        raise ValueError(
            f"{name} = {float(value):g} is not a whole number; "
            "choose sizes that divide, or drop such points with a constraint"
        )
    return int(value)


def _record(kind: type[Record], values: dict, follow: Collection[str]):
    try:
        return kind.model_validate({name: whole(name, value) for name, value in values.items()})
    except ValidationError as error:
        raise ValueError("\n".join(wrong_fields(error, kind, follow))) from None


def wrong_fields(
    error: ValidationError,
    kind: type[Record],
    follow: Collection[str],
    types: Collection[str] | None = None,
) -> list[str]:
    """Return a line for each mistake in a record; with `types`, only those pydantic error types.

    A field that follows from others by an expression (`follow`) is not reported as missing if one
    of those is missing.
    """

    def asked(one: dict) -> bool:
        return types is None or one["type"] in types

    def first(one: dict) -> bool:
        return asked(one) and not (one["type"] == "missing" and one["loc"][0] in follow)

    found = describe(error, kind.model_fields, keep=first)
    return found or describe(error, kind.model_fields, keep=asked)


def with_expression(base: Base, derive: dict[str, str]) -> Collection[str]:
    """Return the fields that have an expression."""
    return (base.family.derivations() | RunConfig.derived | base.derive | derive).keys()


def named_architecture(base: Base) -> Architecture:
    """Return the published architecture of a model. Raises ValueError if fields are missing."""
    values = resolve(base, {}, {})
    fields = {name: value for name, value in values.items() if name not in FIELDS_OF_RUN}
    return _record(base.family, fields, with_expression(base, {}))


def predicted_peak(architecture: Architecture, run: RunConfig, quantities: list[str]) -> int:
    """Predict the peak memory of measuring one model, in bytes.

    The bytes of its parameters if nothing runs or no formula covers it.
    """
    steps = (OF_TRAINING | OF_ALLOCATOR) & set(quantities)
    if steps and architecture.has_formula_for("peak_training_bytes", architecture, run):
        phases = architecture.peak_training_bytes(architecture, run)
        return max(term.total for term in phases.values())
    return total(architecture.parameter_bytes(architecture, run))


@cache
def checks_of_run(family: type[Architecture], quantities: tuple[str, ...]) -> list[Constraint]:
    """Return the constraints under which a model and its run have the quantities to measure."""
    running = OF_RUN | {"resident_peak_bytes"}
    asked = [name for name in quantities if name in running]
    if not asked:
        return []
    if not family.is_language_model():
        never = (
            f"measure.quantities: {asked[0]} needs a language model: {family.name()} "
            "does not turn tokens into logits"
        )
        return [Constraint("False", never)]
    found = [*run_constraints(family)]
    if OF_INFERENCE & set(asked):
        found += constraints_of_cache(family)
    if "resident_peak_bytes" in asked:
        found.append(_backend("cpu", "resident_peak_bytes is memory of a CPU"))
    of_gpu = [name for name in asked if name in OF_ALLOCATOR - {"peak_requested_bytes"}]
    if of_gpu:
        found.append(_backend("gpu", f"{of_gpu[0]} is of a GPU"))
    return found


def _backend(allowed: str, reason: str) -> Constraint:
    message = f"backend = '{{backend}}': {reason}; allowed: {allowed}"
    return Constraint(f"backend == '{allowed}'", message)


def constraints_of_cache(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints under which a model can decode with a cache."""
    none = "no cache is known for that"
    if not family.has_cache:
        return [Constraint("False", f"measure.quantities: {family.name()} keeps no cache; {none}")]
    if "position" not in family.model_fields:
        return []
    adds = f"measure.quantities: position: {{position}} adds to scores; {none}"
    return [Constraint(f"position not in {MASKS}", adds)]


def check_run(architecture: Architecture, run: RunConfig, sweep: Sweep) -> None:
    """Raise ValueError if a model cannot be trained or used as a sweep asks."""
    checks = checks_of_run(type(architecture), tuple(sweep.measure.quantities))
    check_all(checks, vars(architecture) | vars(run))
