"""A sweep file, read and checked as far as possible without its points."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from modelbudget.catalogue.named_models import Base, Catalogue, base_of_class, configured_base
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.validation_messages import describe, show
from modelbudget.huggingface.read_config import keys_by_field
from modelbudget.sweeps.chart_choice import ChartChoice
from modelbudget.sweeps.check_values import check_names_and_values
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantity_names import OF_INFERENCE, OF_PARAMETERS, OF_PROCESS, OF_RUN
from modelbudget.sweeps.sweep_file import Measure, Solve, Sweep, Value
from modelbudget.sweeps.sweep_mistakes import Mistakes

TRAINING = OF_RUN - OF_INFERENCE | {"resident_peak_bytes"}
ABOUT = {
    "all": OF_PARAMETERS | OF_RUN | OF_PROCESS,
    "bytes": OF_RUN | OF_PROCESS | {"parameter_bytes"},
    "training": TRAINING,
    "inference": OF_INFERENCE,
    "serving": {"request_bytes"},
}
"""Quantities of each topic of a note."""


MAX_ROUNDS = 3
"""How often mistakes are removed from a sweep to find further ones."""
COSMETIC = {"title", "question", "headline", "order", "fit", "fit_measured_on", "layouts"}
"""Keys that do not affect points."""


class CheckedSweep(NamedTuple):
    """A sweep whose names and values are valid; its points are not expanded yet."""

    path: Path
    sweep: Sweep
    bases: dict[Any, Base]
    catalogue: Catalogue
    mistakes: Mistakes

    @property
    def about(self) -> tuple[Path, str, Sweep, list[Path], list[str]]:
        """What it is called, what it says, its files, and notes on them."""
        return self.path, self.path.stem, self.sweep, self.files, self.notes

    @property
    def files(self) -> list[Path]:
        """The config.json files used as bases."""
        return [self.path.parent / name for name in self.bases if is_file(name)]

    @property
    def notes(self) -> list[str]:
        """A line for each note on these files that concerns a quantity or a run of the sweep."""
        sweep, measured = self.sweep, set(self.sweep.measure.quantities)
        in_points = {name for point in sweep.points for name in point}
        chosen = {*sweep.fixed, *sweep.axes(), *sweep.derive, *in_points}
        return [
            f"{base.name}: {note.text}"
            for base in self.bases.values()
            for note in base.notes
            if ABOUT[note.about] & measured and note.settles not in chosen
        ]


def read(path: Path, catalogue: Catalogue) -> CheckedSweep:
    """Read the sweep in `path`.

    Raises InputError with all mistakes that affect points. Mistakes that do not are raised by
    `expanded`, together with those of points.
    """
    mistakes = Mistakes(path)
    sweep, wrong = _read(path, mistakes)
    before = len(mistakes.points)
    if reason := sweep.too_many_values():
        mistakes.add(reason)
        mistakes.raise_if_any()
    unknown = wrong - Sweep.model_fields.keys()
    bases = _bases(sweep, catalogue, mistakes)
    check_names_and_values(sweep, bases, mistakes)
    for keys, line in () if unknown else (*sweep.contradictions(), *sweep.gaps()):
        if not keys & wrong:
            mistakes.add(line)
    if wrong - COSMETIC or len(mistakes.points) > before:
        mistakes.raise_if_any()
    return CheckedSweep(path, sweep, bases, catalogue, mistakes)


def _read(path: Path, mistakes: Mistakes) -> tuple[Sweep, set[str | int]]:
    """Read a sweep without its invalid parts, so that the rest is checked too.

    Returns it with the top-level keys that contain mistakes. Raises InputError if nothing is left.
    """
    data = load_yaml(path)
    try:
        return Sweep.model_validate(data), set()
    except ValidationError as error:
        of_range = ("from", "to", "steps", "scale", "multiple_of")
        parts = Sweep, Measure, Solve, ChartChoice
        keys = [*(name for part in parts for name in part.model_fields), *of_range]
        for line in describe(error, keys, ("range", "list", "bool", "int", "str")):
            mistakes.add(line)
        errors = error.errors(include_url=False)
    wrong = {error["loc"][0] for error in errors}
    for _ in range(MAX_ROUNDS):
        places = [_innermost(data, error["loc"]) for error in errors]
        for holder, key in filter(None, places):
            holder.pop(key, None)
        try:
            return Sweep.model_validate({"title": "-", "question": "-"} | data), wrong
        except ValidationError as error:
            errors = error.errors(include_url=False)
    raise mistakes.error()


def _innermost(data: dict, path: tuple) -> tuple[dict, str] | None:
    """Return the innermost key on the path to a mistake, and the mapping that contains it.

    Never an index of a list, so that later items keep their numbers. Steps that only name a type of
    a union are skipped.
    """
    place, at = None, data
    for step in path:
        if isinstance(at, dict) and step in at:
            place, at = (at, step), at[step]
        elif isinstance(at, list) and isinstance(step, int) and step < len(at):
            at = at[step]
    return place


def listed_points(sweep: Sweep, catalogue: Catalogue) -> list[dict[str, Value]]:
    """Return the points listed one by one, after all named models if `models: all` is given."""
    names = [name for name, base in catalogue.bases.items() if base.model] if sweep.models else []
    return [*({"base": name} for name in names), *sweep.points]


def is_file(base: str) -> bool:
    return base.endswith(".json")


def _bases(sweep: Sweep, catalogue: Catalogue, mistakes: Mistakes) -> dict[Any, Base]:
    """Return every base of the sweep by its name in the file."""
    bases: dict[Any, Base] = {
        point["base"]: catalogue[str(point["base"])]
        for point in listed_points(sweep, catalogue)
        if sweep.models and point.get("base") in catalogue.bases
    }
    named = {"base": sweep.base} if sweep.base is not None else {}
    named |= {f"grid.base[{i}]": name for i, name in enumerate(sweep.axes().get("base", ()))}
    named |= {f"points[{i}].base": p["base"] for i, p in enumerate(sweep.points) if "base" in p}
    folder = mistakes.path.parent
    for key, name in named.items():
        text = str(name)
        try:
            bases[name] = file_base(folder, text) if is_file(text) else catalogue[text]
        except InputError as error:
            for line in error.mistakes:
                mistakes.add(f"{key}: {line}")
        except ValueError as error:
            mistakes.add(f"{key} = {show(name)}: {error}")
    return bases


def file_base(folder: Path, name: str) -> Base:
    """Read a config.json as a base, of its class alone if its family does not allow the values.

    Raises InputError that names its keys.
    """
    base = configured_base(folder, name)
    try:
        named_architecture(base)
    except ValueError as error:
        keys = keys_by_field(base.transformers) if base.transformers else {}
        lines = [_with_keys(line, keys) for line in str(error).splitlines()]
        try:
            return base_of_class(base, lines)
        except ValueError as refusal:
            raise InputError.at(folder / name, refusal) from None
    return base


def _with_keys(line: str, keys: dict[str, str]) -> str:
    """Append to a line about fields the keys that they have in a config.json."""
    words = set(re.findall(r"\w+", line))
    listed = ", ".join(f"{f} is {key}" for f, key in keys.items() if f in words and f != key)
    return f"{line} ({listed})" if listed else line
