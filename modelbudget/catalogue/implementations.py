"""How implementations compute: reads `configs/implementations/*.yaml`, one file for each."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_implementation import IMPLEMENTATIONS
from modelbudget.common.errors import InputError
from modelbudget.common.mistakes import describe
from modelbudget.common.strict import Strict, read_strict
from modelbudget.huggingface.classes import Formula

OURS, TRANSFORMERS = "modelbudget", "transformers"
"""Implementations at the ends of the range: fused modules, and the class in `transformers`."""
Settings = dict[str, str | int | bool]
Compared = dict[str, list[bool | int | float | str | None]]
"""Key of a config.json → the values with which formulas were compared; empty: all."""
DEFAULTS = {name: field.default for name, field in RunConfig.model_fields.items()}


class OfClass(Strict):
    """Run settings that a class of transformers adds, and what was compared with its trace."""

    settings: Settings = Field({})
    keys: Compared = Field({}, description="as in `compared`, for this class")
    only: dict[str, Formula] = Field(
        {}, description="quantity → the condition on fields under which it was compared"
    )
    divided: Formula = Field(
        "False",
        description="the condition under which a model that several devices share was compared",
    )


class ComparedWithClasses(Strict):
    """With which keys of a config.json formulas were compared with traces, at difference 0.

    Sizes were varied freely.
    """

    quantities: list[str]
    run: Formula = Field(description="a condition on the fields of the run")
    without_effect: list[re.Pattern] = Field(
        description="keys that change neither memory nor compute; dots lead into nested keys"
    )
    keys: Compared = Field(description="key → the values that were compared")


class Implementation(Strict):
    """Run settings of an implementation.

    `settings` are those of all its models, `classes` those of single classes of transformers. With
    `classes`, models of other classes are refused; with `compared`, models of none, too.
    """

    title: str
    source: str = Field(description="where it was read how the implementation computes")
    checked: str = Field(description="how its settings were checked")
    settings: Settings
    classes: dict[str, OfClass] = Field({})
    compared: ComparedWithClasses | None = Field(
        None, description="of an implementation of classes"
    )

    def all_settings(self) -> list[Settings]:
        """Return the settings of all models, and those that classes add."""
        return [self.settings, *(one.settings for one in self.classes.values())]

    def of_class(self, kind: str | None) -> Settings:
        """Return the settings for a class, or for a model without one. Raises ValueError."""
        if self.compared and kind is None:
            raise ValueError(
                f"implementation: {self.title} has no class that is this model; allowed: "
                f"{', '.join(name for name in IMPLEMENTATIONS if name != self.title)}"
            )
        if self.classes and kind is not None and kind not in self.classes:
            known = ", ".join(self.classes)
            raise ValueError(
                f"implementation: {self.title} has not been compared with {kind}; known: {known}"
            )
        of_class = self.classes.get(kind or "")
        return self.settings | (of_class.settings if of_class else {})


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
    of_classes = {name: of_class.settings for name, of_class in one.classes.items()}
    for where, settings in {"settings": one.settings, **of_classes}.items():
        try:
            RunConfig.model_validate(settings)
        except ValidationError as error:
            mistakes += [f"{path}: {where}: {m}" for m in describe(error, RunConfig.model_fields)]
    if mistakes:
        raise InputError(mistakes)
    return one


class Otherwise(Protocol):
    """The value of a setting that an implementation leaves open, from those of other fields."""

    names: frozenset[str]

    def __call__(self, values: Mapping[str, Any]) -> Any: ...


class Setting:
    """The value of a run setting for a class, read from `implementation` like an expression.

    `otherwise` has it where the implementation does not; without that it is the field's default.
    """

    text = "implementation"

    def __init__(self, name: str, kind: str | None, otherwise: Otherwise | None = None):
        self.name, self.kind, self.otherwise = name, kind, otherwise
        self.names = frozenset({"implementation"}) | (otherwise.names if otherwise else set())

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value. Raises ValueError if the implementation refuses the class."""
        name = values["implementation"]
        one = implementations().get(name) if isinstance(name, str) else None
        settings = one.of_class(self.kind) if one else {}  # the field itself refuses the name
        if self.name in settings:
            return settings[self.name]
        return self.otherwise(values) if self.otherwise else DEFAULTS[self.name]


@cache
def settings(kind: str | None) -> dict[str, Setting]:
    """Return all run settings that depend on the implementation, for a class or for None."""
    found = (one.all_settings() for one in implementations().values())
    names = {name for several in found for each in several for name in each}
    return {name: Setting(name, kind) for name in sorted(names)}
