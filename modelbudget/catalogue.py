"""Named models: `configs/models/*.yaml`, one file for each series of models with shared switches.

A sweep's base is a family (code), a series (a file) or a model (an entry of a file).
"""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modelbudget.architecture import Architecture, Count
from modelbudget.errors import InputError, did_you_mean
from modelbudget.families import families
from modelbudget.files import load_yaml
from modelbudget.mistakes import describe

Value = bool | int | str
Fields = dict[str, Value]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Model(_Strict):
    """One published model: its numbers and where they were read."""

    label: str
    fields: Fields
    source: str = Field(description="where the fields were published")
    published: str | None = Field(None, description="the size as printed, e.g. 540.35B")
    published_value: float | None = Field(None, description="the printed size as a number")
    published_tolerance: float | None = Field(
        None, description="half-width within which a count agrees; none: the print was not checked"
    )
    exact: Count | None = Field(None, description="a parameter count that others have counted")
    exact_source: str | None = Field(None, description="who counted")
    remark: str | None = Field(None, description="why counts differ, or what is unexplained")


class Series(_Strict):
    """Models that share their switches."""

    title: str
    family: str
    fields: Fields = Field({}, description="what all models of the series have in common")
    derive: dict[str, str] = Field({}, description="fields that follow from others")
    models: dict[str, Model] = {}


class Base(NamedTuple):
    """Where a sweep starts: a family, the fields already set, and how others follow."""

    name: str
    label: str
    family: type[Architecture]
    fields: Fields
    derive: dict[str, str]
    model: Model | None = None


class Catalogue:
    """Every base by name. Raises InputError when a file is wrong or two share a name."""

    def __init__(self, folder: Path):
        self.bases = {name: Base(name, name, kind, {}, {}) for name, kind in families().items()}
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
            for base in _read(path):
                if base.name in self.bases:
                    raise InputError([f"{path}: the name {base.name!r} is already taken"])
                self.bases[base.name] = base

    def __getitem__(self, name: str) -> Base:
        """Raises ValueError with the nearest known name."""
        if name not in self.bases:
            raise ValueError(
                f"unknown base {name!r}{did_you_mean(name, self.bases)} "
                f"(allowed: {', '.join(sorted(self.bases))})"
            )
        return self.bases[name]


def _read(path: Path) -> list[Base]:
    try:
        series = Series.model_validate(load_yaml(path))
    except ValidationError as error:
        keys = [*Series.model_fields, *Model.model_fields]
        raise InputError(
            [f"{path}: {line}" for line in describe(error, keys, hidden=("bool", "int", "str"))]
        ) from None
    if series.family not in families():
        raise InputError(
            [
                f"{path}: family = {series.family!r}: unknown family"
                f"{did_you_mean(series.family, families())} (allowed: {', '.join(families())})"
            ]
        )
    family = families()[series.family]
    shared = Base(path.stem, series.title, family, series.fields, series.derive)
    return [shared] + [
        Base(name, model.label, family, series.fields | model.fields, series.derive, model)
        for name, model in series.models.items()
    ]
