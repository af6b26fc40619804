"""Named models: reads `configs/models/*.yaml`, one file for each series of models.

Files of the same form in `configs/released/` have further models, which are known by name alone: no
page has them. A sweep's base is a family (code), a series (a file), a model (an entry of a file) or
a config.json from a model page.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, Self, cast

from pydantic import Field, model_validator

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.common.errors import InputError, noted
from modelbudget.common.expressions import TextOrNumber
from modelbudget.common.files import mapping_in, read_text, yaml_files
from modelbudget.common.strict import Strict, as_strict
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.families import families
from modelbudget.huggingface import config_file
from modelbudget.huggingface.classes import CLASSES, translations
from modelbudget.huggingface.run_settings import Note

KEYS = "workflow/schemas/model.schema.json"
FAMILIES = "modelbudget/families"
RELEASED = "released"
"""Folder next to that of the catalogue with models that are known by name alone."""
Value = bool | int | str
Fields = dict[str, Value]


class Provenance(Strict):
    """Sources of numbers. Those of a series are defaults for its models."""

    source: str | None = None
    published_source: str | None = None
    published_checked: Literal["read", "partly"] | None = None
    published_tolerance: Size | None = None
    exact_source: str | None = None
    transformers: str | None = None
    stand_in: str | None = None
    remark: str | None = None
    same_shape_source: str | None = None
    contexts: dict[str, Size] | None = None
    fields_of_whole: Fields | None = None


class Model(Provenance):
    """One published model: its numbers and their sources."""

    label: str
    fields: Fields = Field({})
    config: str | None = None
    published: str | None = None
    published_value: Count | None = None
    published_active: Count | None = None
    exact: Count | None = None
    independent: Count | None = None
    reason: str | None = None
    released_weights: str | None = None
    same_shape: list[str] = Field([])
    left_out: dict[str, Count] = Field({})


class Series(Provenance):
    """Models that share fields.

    Without a `family`, each model has that of its config.json.
    """

    title: str
    family: str | None = None
    fields: Fields = Field({})
    derive: dict[str, TextOrNumber] = Field({})
    models: dict[str, Model] = Field({})

    @model_validator(mode="after")
    def inherits_sources(self) -> Self:
        """Give the sources of the series to each model that has none of its own."""
        provenance = {name: getattr(self, name) for name in Provenance.model_fields}
        for name, model in self.models.items():
            sources = model.model_dump(exclude_none=True)
            self.models[name] = model.model_copy(update=provenance | sources)
            if self.models[name].source is None:
                raise ValueError(f"models.{name}.source: missing; give it here or to the series")
            if model.same_shape and self.models[name].same_shape_source is None:
                raise ValueError(f"models.{name}.same_shape_source: missing; same_shape needs it")
            if self.family is None and model.config is None:
                raise ValueError(f"family: missing; models.{name} has no config to give it")
        return self


class Base(NamedTuple):
    """The start of a sweep: a family, fields already set, and expressions for derived fields.

    `path` is the file of a named model or series. `notes` are those of its config.json, and
    `config` has its keys, as JSON, if its class can be built from them. `left_out`: parameters of
    other parts than the language model that is counted.
    """

    name: str
    label: str
    family: type[Architecture]
    fields: Fields
    derive: dict[str, str]
    model: Model | None = None
    transformers: str | None = None
    series: str | None = None
    path: Path | None = None
    notes: tuple[Note, ...] = ()
    config: str | None = None
    left_out: int = 0

    @property
    def released_weights(self) -> str | None:
        """The format in which a published model was released, if that is not its dtype."""
        return self.model.released_weights if self.model else None


def as_spelled(name: str) -> str:
    """Return a name without what people spell differently; dots stay, so that 1.7b is not 17b."""
    return re.sub(r"[\s:_/-]", "", name.casefold())


class Catalogue:
    """All bases by name. Raises InputError with the mistakes of all files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.bases = {name: Base(name, name, family, {}, {}) for name, family in families().items()}
        mistakes: list[str] = []
        for path in yaml_files(folder):
            with noted(mistakes):
                for base in _bases(path):
                    if base.name in self.bases:
                        mistakes.append(f"{path}: the name {base.name!r} is already taken")
                    self.bases[base.name] = base
        if mistakes:
            raise InputError(mistakes)

    def __getitem__(self, name: str) -> Base:
        """Return a base, or that whose shape has the name. Raises ValueError with similar names."""
        base = self.bases.get(name) or _of_same_shape(self.bases.values(), name)
        base = base or find_by_name(self.folder.with_name(RELEASED), name)
        if base is None:
            folder = Path(*self.folder.parts[-2:])  # wherever the package is installed
            raise ValueError(f"unknown base {show(name)}{offered(name, self.bases, str(folder))}")
        return base


def names_of_models(folder: Path) -> dict[str, Base]:
    """Return each name of a model, without that of its owner, and the model."""
    models = [(base, base.model) for base in all_models(folder) if base.model]
    return {
        without_owner(name): base
        for base, model in models
        for name in (base.name, *model.same_shape)
    }


def all_models(folder: Path) -> list[Base]:
    """Return the models of a catalogue, then those that are known by name alone."""
    catalogues = Catalogue(folder), Catalogue(folder.with_name(RELEASED))
    return [base for catalogue in catalogues for base in catalogue.bases.values() if base.model]


def find(folder: Path, name: str) -> Base:
    """Return one base, by its name or another spelling of it.

    Reads and checks all files if none of them has the name. Raises ValueError with similar names,
    or InputError.
    """
    if base := find_by_name(folder, name):
        return base
    catalogues = Catalogue(folder), Catalogue(folder.with_name(RELEASED))
    spelled = as_spelled(name)
    for catalogue in catalogues:
        for base in catalogue.bases.values():
            for known in (base.name, *base.model.same_shape) if base.model else ():
                if spelled in (as_spelled(known), as_spelled(without_owner(known))):
                    return catalogue[known]
    return catalogues[0][name]


def find_by_name(folder: Path, name: str) -> Base | None:
    """Return the base of just this name, or of this shape; parses the files that mention it alone.

    Raises InputError, also if models of several owners, of different shapes, have the name.
    """
    texts: dict[Path, str] = {}
    for path in (*yaml_files(folder), *yaml_files(folder.with_name(RELEASED))):
        texts[path] = read_text(path)
        if name == path.stem or f"{name}:" in texts[path]:
            for base in _bases(path):
                if base.name == name:
                    return base
    if name in families():
        return Base(name, name, families()[name], {}, {})
    spelled = name.casefold()
    paths = [path for path, text in texts.items() if spelled in text.casefold()]
    return _of_same_shape([base for path in paths for base in _bases(path)], name)


def _of_same_shape(bases: Iterable[Base], name: str) -> Base | None:
    """Return the model whose shape a model of another name has, under that name.

    Raises InputError if models of several owners, of different shapes, have the name.
    """
    named = {
        shape_name: base
        for base in bases
        for shape_name in (base.model.same_shape if base.model else ())
        if name.casefold() in (shape_name.casefold(), without_owner(shape_name).casefold())
    }
    whole = {n: base for n, base in named.items() if n.casefold() == name.casefold()} or named
    if len({base.name for base in whole.values()}) > 1:
        raise InputError([f"MODEL = {show(name)}: of several owners; allowed: {', '.join(whole)}"])
    for shape_name, base in whole.items():
        model = cast(Model, base.model)
        line = f"has the shape of {base.name} ({model.same_shape_source})"
        label = f"{name} (shape of {base.label})"
        n_ctx = _of_name(model.contexts or {}, shape_name)
        left_out = _of_name(model.left_out, shape_name)
        of_whole = (left_out and model.fields_of_whole) or {}
        fields = base.fields | ({"n_ctx": n_ctx} if n_ctx else {}) | of_whole
        notes = *base.notes, Note(line)
        return base._replace(name=name, label=label, fields=fields, notes=notes, left_out=left_out)
    return None


def _of_name(numbers: Mapping[str, int], name: str) -> int:
    """Return the number of the first part that a name has; 0 if it has none."""
    return next((n for part, n in numbers.items() if part in name), 0)


def without_owner(name: str) -> str:
    """Return the name of a model on huggingface.co without that of its owner."""
    return name.rpartition("/")[2]


def of_series(folder: Path, name: str) -> list[str]:
    """Return the names of the models of a series; none if there is no such series."""
    paths = [path for path in yaml_files(folder) if as_spelled(path.stem) == as_spelled(name)]
    return [base.name for path in paths for base in _bases(path) if base.model]


def _bases(path: Path) -> list[Base]:
    """Return the whole series, if its models have one family and it has a name, and its models."""
    series = _series(path, read_text(path))
    if series.family is not None and series.family not in families():
        known = offered(series.family, families(), FAMILIES)
        raise InputError([f"{path}: family = {show(series.family)}: unknown family{known}"])
    named = [_named(path, series, name, model) for name, model in series.models.items()]
    if series.family is None or path.parent.name == RELEASED:
        return named
    family, name = families()[series.family], series.transformers
    fields, rules = series.fields, series.derive
    whole = Base(path.stem, series.title, family, fields, rules, transformers=name, path=path)
    return [whole, *named]


@cache  # a name is looked for in all files, up to five times; parsing them takes longest
def _series(path: Path, text: str) -> Series:
    """Return the series in the text of a file. Raises InputError with every mistake."""
    return as_strict(mapping_in(text, path), path, Series, Model, rest=KEYS)


def _named(path: Path, series: Series, name: str, model: Model) -> Base:
    """Build a base from an entry: its fields override its config.json, and that the series."""
    family = families().get(series.family or "")
    configured, notes, keys = {}, (), None
    class_name = model.transformers
    if model.config:
        base = configured_base(path.parent, model.config)
        if family not in (None, base.family):
            of_both = f"{base.family.name()!r}, and the series is of family {series.family!r}"
            config = f"models.{name}.config = {model.config!r}"
            raise InputError([f"{path}: {config}: is of family {of_both}"])
        family = base.family
        configured, notes = base.fields, base.notes
        keys = base.config if class_name in (None, base.transformers) else None
        class_name = class_name or base.transformers
    # Without a config there is a family: `inherits_sources` has checked that.
    return Base(
        name,
        model.label,
        cast(type[Architecture], family),
        series.fields | configured | model.fields,
        series.derive,
        model,
        class_name,
        series.title,
        path,
        notes,
        keys,
    )


def configured_base(folder: Path, name: str) -> Base:
    """Read a config.json in a folder or below it as a base. Raises InputError."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError([f"{path}: lies outside of {folder}; put a copy into that folder"])
    label = path.absolute().parent.name if path.stem == "config" else path.stem
    return base_of_config(path, label, config_file.read(path))


def base_of_config(path: Path, label: str, configured: config_file.Configured) -> Base:
    """Return the base of what was read of a file."""
    family, fields, class_name, run, notes, keys, left_out = configured
    return Base(
        str(path),
        label,
        families()[family],
        fields | run,
        {},
        transformers=class_name,
        notes=tuple(notes),
        config=keys,
        left_out=left_out,
    )


def base_of_class(base: Base, mistakes: list[str]) -> Base:
    """Return a config.json whose values its family does not allow as its class alone.

    Raises ValueError with the mistakes if the class has no config or cannot be built.
    """
    if base.transformers is None or base.config is None:
        raise ValueError("\n".join(mistakes))
    read = config_file.as_class(base.transformers, json.loads(base.config), mistakes)
    return base._replace(
        family=families()[read.family],
        fields=read.fields | read.run,
        transformers=None,
        notes=tuple(dict.fromkeys((*base.notes, *read.notes))),
        config=None,
    )


def wrong_class(base: Base) -> list[str]:
    """Return a mistake if no config can be written for the `transformers` class of a base."""
    name, family = base.transformers, base.family.name()
    known = sorted(
        n for n, of in translations().items() if of.in_transformers and of.family == family
    )
    if name is None or name in known:
        return []
    return [
        f"transformers = {show(name)}: no class that is a {family}{offered(name, known, CLASSES)}"
    ]
