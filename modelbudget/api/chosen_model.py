"""A model that was asked for: its architecture, and the settings of its run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from modelbudget.api.arguments import checked
from modelbudget.api.find import GGUF, find, models_of_series
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import OF_ADAPTER
from modelbudget.architecture.run_config import RunConfig, in_full
from modelbudget.catalogue.named_models import Base
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show, unknown_fields
from modelbudget.huggingface import checkpoint_files
from modelbudget.sweeps.derive import missing_fields, resolved

Settings = RunConfig | Mapping[str, Any] | None
"""How a model runs: a RunConfig, of which the fields that are set count, or a mapping of fields."""


def fields_of(settings: Settings) -> dict[str, Any]:
    """Return the fields that settings set, with Python's numbers and dtypes by their full names."""
    if isinstance(settings, RunConfig):
        return {name: getattr(settings, name) for name in settings.model_fields_set}
    return {name: in_full(value) for name, value in (settings or {}).items()}


@dataclass(frozen=True)
class ChosenModel:
    """One architecture, and the run settings that its source gives.

    `base` is the entry of the catalogue or the config.json that it was made from; `chosen` are the
    fields that override it; `weights` is a file or index with tensors that was named with it.
    """

    base: Base
    chosen: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None

    def __post_init__(self):
        """Raise InputError where a name stands for the base: `model` finds that."""
        if not isinstance(self.base, Base):
            name = show(self.base)
            raise InputError([f"Model(): base = {name}: must be a base; allowed: model({name})"])

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.chosen.items())))

    @property
    def name(self) -> str:
        """What it was asked for as."""
        return self.base.name

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.base.label

    @property
    def architecture(self) -> Architecture:
        """The complete record of its sizes. Raises InputError if a field is missing or wrong."""
        return self._without_settings[0]

    @checked()
    def run(self, settings: Settings = None) -> RunConfig:
        """Return the run with all fields: the given ones, those of the source, defaults."""
        return self.with_run(settings)[1]

    @checked()
    def with_run(self, settings: Settings = None) -> tuple[Architecture, RunConfig]:
        """Return the architecture and the complete run. Raises InputError."""
        fields = fields_of(settings)
        return self._resolved(fields) if fields else self._without_settings

    @cached_property
    def _without_settings(self) -> tuple[Architecture, RunConfig]:
        return self._resolved({})

    def _resolved(self, settings: dict[str, Any]) -> tuple[Architecture, RunConfig]:
        fields = {**self.chosen, **settings}
        known = [*self.base.family.model_fields, *RunConfig.model_fields]
        if mistakes := unknown_fields(fields, known):
            raise InputError([f"{self.name}: {line}" for line in mistakes])
        try:
            architecture, run = resolved(self.base, fields)
        except ValueError as error:
            raise InputError.at(self.name, error) from None
        if run.adapter == "none" and not run.served_adapters:
            defaults = {name: RunConfig.model_fields[name].default for name in OF_ADAPTER}
            wrong = [name for name, value in defaults.items() if fields.get(name, value) != value]
            if wrong:
                no_adapter = "of no adapter; allowed with adapter: lora, …"
                mistakes = [f"{self.name}: {n} = {show(fields[n])}: {no_adapter}" for n in wrong]
                raise InputError(mistakes)
        return architecture, run

    @classmethod
    def named(cls, name: str, /, **fields: Any) -> Self:
        """Return a model by name, config.json or folder; `fields` override single sizes.

        Raises InputError with what is allowed; of a series without some of its sizes, its models.
        """
        weights = Path(name) if name.endswith(GGUF) else checkpoint_files.find(name)
        chosen = cls(find(name), fields_of(fields), weights)
        missing = missing_fields(chosen.base, chosen.chosen)
        if missing and (models := models_of_series(name)):
            sizes = ", ".join(missing)
            raise InputError([f"{name}: a series; allowed: {models}, or values of {sizes}"])
        chosen.with_run()  # complete and valid, or an error now
        return chosen

    @classmethod
    def of_argument(cls, argument: str, name: str, others: str = "") -> Self:
        """Return the model that an argument names, which mistakes name in the place of MODEL.

        `others`: what the argument may be that is no model. It sets no sizes of one.
        """
        try:
            return cls.named(name)
        except InputError as error:
            of_model = rf"^(MODEL = {re.escape(show(name))}|{re.escape(name)}): |, or values of .*"
            words = [re.sub(of_model, "", line) for line in error.mistakes]
            whys = [line.replace("&& modelbudget ", f"and `{argument}=`") for line in words]
            raise InputError([f"`{argument}={name}`: {why}{others}" for why in whys]) from None
