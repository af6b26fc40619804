"""How implementations compute: reads `configs/implementations/*.yaml`, one file for each."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from modelbudget.architecture.run_config import IMPLEMENTATIONS, RunConfig
from modelbudget.common.errors import InputError, noted
from modelbudget.common.strict import Strict, read_strict
from modelbudget.common.validation_messages import describe
from modelbudget.huggingface.classes import Case, Formula, translations

OURS, TRANSFORMERS = "modelbudget", "transformers"
"""Implementations at the ends of the range: fused modules, and the class in `transformers`."""
Settings = dict[str, str | int | bool]
Compared = dict[str, list[bool | int | float | str | None]]
"""Key of a config.json → the values with which formulas were compared; empty: all."""
ByKey = dict[str, list[Case]]
"""Key of a config.json → its values, and the run settings of each; of others, those without it."""
DEFAULTS = {name: field.default for name, field in RunConfig.model_fields.items()}


class OfClass(Strict):
    """Run settings that a class of transformers adds, and what was compared with its trace.

    `without` has quantities that differ.
    """

    settings: Settings = Field({})
    by_key: ByKey = Field({})
    keys: Compared = Field({})
    run: list[Formula] = Field([])
    only: dict[str, Formula] = Field({})
    without: list[str] = Field([])
    divided: Formula = "False"


class ComparedWithClasses(Strict):
    """With which keys of a config.json formulas were compared with traces, at difference 0.

    Sizes were varied freely. `differs` has values of keys with which single quantities differ.
    """

    quantities: list[str]
    run: list[Formula]
    only: dict[str, Formula] = Field({})
    differs: dict[str, Compared] = Field({})
    without_effect: list[re.Pattern]
    keys: Compared


class Implementation(Strict):
    """Run settings of an implementation.

    `settings` are those of all its models, `classes` those of single classes of transformers. With
    `classes`, models of other classes are refused; with `compared`, models of none, too.
    Settings `of_our_modules` a class does not have: it computes as its code says.
    """

    title: str
    source: str
    checked: str
    settings: Settings
    by_key: ByKey = Field({})
    classes: dict[str, OfClass] = Field({})
    compared: ComparedWithClasses | None = None
    of_our_modules: list[str] = Field([])

    def all_settings(self) -> Iterator[tuple[str, Settings]]:
        """Yield the settings of all models, and those that classes and keys add, with places."""
        yield "settings", self.settings
        yield from _by_key("", self.by_key)
        for name, of_class in self.classes.items():
            yield name, of_class.settings
            yield from _by_key(f"{name}.", of_class.by_key)

    def of_class(self, class_name: str | None, config: Mapping[str, Any] = {}) -> Settings:
        """Return the settings for a class, or for a model without one. Raises ValueError.

        `config` has the keys of its config.json; the class has defaults for all others.
        """
        if self.compared and class_name is None:
            raise ValueError(
                f"implementation: {self.title} has no class that is this model; allowed: "
                f"{', '.join(name for name in IMPLEMENTATIONS if name != self.title)}"
            )
        if self.classes and class_name is not None and class_name not in self.classes:
            known = ", ".join(self.classes)
            raise ValueError(
                f"implementation: {self.title} has not been compared with {class_name}; "
                f"known: {known}"
            )
        of_class = self.classes.get(class_name or "")
        if of_class is None or class_name is None:
            return self.settings
        settings = self.settings | of_class.settings
        by_key, aliases = self.by_key | of_class.by_key, translations()[class_name].aliases
        for key, value in config.items():
            for case in by_key.get(aliases.get(key, key), ()):
                settings |= case.fields if is_same(case.value, value) else {}
        return settings


def _by_key(prefix: str, by_key: ByKey) -> Iterator[tuple[str, Settings]]:
    for key, cases in by_key.items():
        yield from ((f"{prefix}by_key.{key}", case.fields) for case in cases)


def is_same(value: Any, default: Any) -> bool:
    """Whether values of a key are equal; true is not 1."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


@cache
def implementations() -> dict[str, Implementation]:
    """Return every implementation by name. Raises InputError with the mistakes of all files."""
    by_name, mistakes = dict[str, Implementation](), list[str]()
    for name, path in IMPLEMENTATIONS.items():
        with noted(mistakes):
            by_name[name] = _read(path)
    if mistakes:
        raise InputError(mistakes)
    return by_name


def _read(path: Path) -> Implementation:
    implementation = read_strict(path, Implementation)
    mistakes = []
    for where, settings in implementation.all_settings():
        try:
            RunConfig.model_validate(settings)
        except ValidationError as error:
            mistakes += [f"{path}: {where}: {m}" for m in describe(error, RunConfig.model_fields)]
    if mistakes:
        raise InputError(mistakes)
    return implementation


class Setting:
    """The value of a run setting for a class, read from `implementation` like an expression.

    `config` has the keys of its config.json. `otherwise` has the value where the implementation
    does not; without that it is the field's default.
    """

    text = "implementation"

    def __init__(
        self,
        name: str,
        class_name: str | None,
        config: Mapping[str, Any],
        otherwise: Any = None,
    ):
        self.name, self.class_name = name, class_name
        self.config, self.otherwise = config, otherwise
        self.names = frozenset({"implementation"}) | (otherwise.names if otherwise else set())

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value. Raises ValueError if the implementation refuses the class."""
        name = values["implementation"]
        implementation = implementations().get(name) if isinstance(name, str) else None
        settings = (
            implementation.of_class(self.class_name, self.config) if implementation else {}
        )  # the field itself refuses the name
        if self.name in settings:
            return settings[self.name]
        return self.otherwise(values) if self.otherwise else DEFAULTS[self.name]


@cache
def settings(class_name: str | None, file: str | None = None) -> dict[str, Setting]:
    """Return all run settings that depend on the implementation, for a class or for None.

    `file` is the config.json of the model, as JSON.
    """
    config = json.loads(file) if file else {}
    all_of = (implementation.all_settings() for implementation in implementations().values())
    names = {name for settings in all_of for _, fields in settings for name in fields}
    return {name: Setting(name, class_name, config) for name in sorted(names)}
