"""How implementations compute: reads `configs/implementations/*.yaml`, one file for each."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_implementation import IMPLEMENTATIONS
from modelbudget.common.errors import InputError
from modelbudget.common.mistakes import describe
from modelbudget.common.strict import Strict, read_strict

Settings = dict[str, str | int | bool]
DEFAULTS = {name: field.default for name, field in RunConfig.model_fields.items()}


class Implementation(Strict):
    """Run settings of an implementation.

    `settings` are those of all its models, `classes` those of single classes of transformers. With
    `classes`, models of other classes are refused.
    """

    title: str
    source: str = Field(description="where it was read how the implementation computes")
    checked: str = Field(description="how its settings were checked")
    settings: Settings
    classes: dict[str, Settings] = Field({})

    def all_settings(self) -> list[Settings]:
        """Return the settings of all models, and those that classes add."""
        return [self.settings, *self.classes.values()]

    def of_class(self, kind: str | None) -> Settings:
        """Return the settings for a class, or for a model without one. Raises ValueError."""
        if self.classes and kind is not None and kind not in self.classes:
            known = ", ".join(self.classes)
            raise ValueError(
                f"implementation: {self.title} has not been compared with {kind}; known: {known}"
            )
        return self.settings | self.classes.get(kind or "", {})


@cache
def implementations() -> dict[str, Implementation]:
    """Return every implementation by name. Raises InputError with the mistakes of all files."""
    found, mistakes = {}, []
    for name, path in IMPLEMENTATIONS.items():
        try:
            found[name] = _read(path)
        except InputError as error:
            mistakes += error.mistakes
    if mistakes:
        raise InputError(mistakes)
    return found


def _read(path: Path) -> Implementation:
    one = read_strict(path, Implementation)
    mistakes = []
    for where, settings in {"settings": one.settings, **one.classes}.items():
        try:
            RunConfig.model_validate(settings)
        except ValidationError as error:
            mistakes += [f"{path}: {where}: {m}" for m in describe(error, RunConfig.model_fields)]
    if mistakes:
        raise InputError(mistakes)
    return one


class Setting:
    """The value of a run setting for a class, read from `implementation` like an expression."""

    names = frozenset({"implementation"})
    text = "implementation"

    def __init__(self, name: str, kind: str | None):
        self.name, self.kind = name, kind

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value. Raises ValueError if the implementation refuses the class."""
        name = values["implementation"]
        if name not in implementations():
            return DEFAULTS[self.name]  # the check of the field itself refuses the name
        return implementations()[name].of_class(self.kind).get(self.name, DEFAULTS[self.name])


@cache
def settings(kind: str | None) -> dict[str, Setting]:
    """Return all run settings that depend on the implementation, for a class or for None."""
    found = (one.all_settings() for one in implementations().values())
    names = {name for several in found for each in several for name in each}
    return {name: Setting(name, kind) for name in sorted(names)}
