"""A model to ask: predictions by formula, and measurements of its real module."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.api.arguments import (
    BOOLEAN,
    DEVICES,
    NAME,
    NAMES,
    NO_PATH_OR_PATH,
    RESERVE,
    SETTINGS,
    TEXT,
    TEXTS,
    checked,
)
from modelbudget.api.breakdown import FORMULA, Breakdown, of_terms
from modelbudget.api.find import GGUF, find, models_of_series
from modelbudget.api.frames import Frames, html_table
from modelbudget.api.lines_of_run import (
    line_of_adapter,
    line_of_optimizer,
    line_of_settings,
    lines_of_weights,
)
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.terms import total
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.catalogue.models import Base
from modelbudget.common.errors import InputError
from modelbudget.common.mistakes import show
from modelbudget.common.suggestions import offered
from modelbudget.huggingface import checkpoint_files
from modelbudget.predict import of_point
from modelbudget.predict.conventions import BY_NAME
from modelbudget.sweeps.derive import missing_fields, resolved
from modelbudget.sweeps.device_defaults import KERNEL, why_math

if TYPE_CHECKING:
    import sympy

    from modelbudget.api.checkpoint import Checkpoint
    from modelbudget.api.conventions import Counts
    from modelbudget.api.fitting import Fit
    from modelbudget.api.measuring import Comparison
    from modelbudget.api.serving import Serving

OF_WEIGHTS = ("parameters", "parameter_bytes")
OF_FILE = ("file_bytes",)
OF_INFERENCE = ("cache_bytes", "peak_inference_bytes", "flops_forward", "flops_decode")
OF_TRAINING = (
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes",
    "flops_forward", "flops_backward",
)  # fmt: skip
QUANTITIES = tuple(dict.fromkeys(OF_WEIGHTS + OF_INFERENCE + OF_TRAINING))
"""Quantities with formulas, in the order in which they are shown."""
WITHOUT_RUN = frozenset({"parameters", *BY_NAME})
"""Quantities that are the same in every run on one device."""

OF_SERVING = ("request_bytes",)
"""Quantities of an engine, which no table shows that does not ask for them."""

SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}

Settings = RunConfig | Mapping[str, Any] | None
"""How a model runs: a RunConfig, of which the fields that are set count, or a mapping of fields."""


def fields_of(settings: Settings) -> dict[str, Any]:
    """Return the fields that settings set, with short names of dtypes in full."""
    if isinstance(settings, RunConfig):
        return {name: getattr(settings, name) for name in settings.model_fields_set}
    return {
        name: SHORT_DTYPES.get(value, value) if isinstance(value, str) else value
        for name, value in (settings or {}).items()
    }


def _file_bytes(architecture: Architecture, run: RunConfig) -> int | None:
    """Return the bytes of the tensors in a file of quantised weights, if they are known."""
    if run.weights == "dtype":
        return None
    terms, why = of_point.terms_or_reason("file_bytes", architecture, run)
    return None if why else total(terms)


def _known(quantities: Collection[str]) -> None:
    """Raise InputError for a quantity that is unknown."""
    known = (*QUANTITIES, *OF_FILE, *OF_SERVING, *BY_NAME)
    unknown = [one for one in quantities if one not in known]
    if unknown:
        raise InputError(
            [f"quantity = {show(one)}: unknown{offered(one, known, '')}" for one in unknown]
        )


@dataclass(frozen=True)
class Model:
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
        return self._resolved({})[0]

    @checked(settings=SETTINGS)
    def run(self, settings: Settings = None) -> RunConfig:
        """Return the run with all fields: the given ones, those of the source, defaults."""
        return self.with_run(settings)[1]

    @checked(settings=SETTINGS)
    def with_run(self, settings: Settings = None) -> tuple[Architecture, RunConfig]:
        """Return the architecture and the complete run. Raises InputError."""
        return self._resolved(fields_of(settings))

    def _resolved(self, settings: dict[str, Any]) -> tuple[Architecture, RunConfig]:
        given = {**self.chosen, **settings}
        known = [*self.base.family.model_fields, *RunConfig.model_fields]
        if unknown := [name for name in given if name not in known]:
            raise InputError(
                [
                    f"{self.name}: {name} = {show(given[name])}: unknown field"
                    f"{offered(name, known, 'docs/fields.md')}"
                    for name in unknown
                ]
            )
        try:
            return resolved(self.base, given)
        except ValueError as error:
            raise InputError([f"{self.name}: {line}" for line in str(error).splitlines()]) from None

    @checked(settings=SETTINGS, given=NAMES)
    def wrong_run(self, settings: Settings, given: Collection[str]) -> str | None:
        """Return why a run is not allowed, if it is because of a field among `given`."""
        from modelbudget.api import of_class

        chosen = {**self.chosen, **fields_of(settings)}
        if of_class.leads(self, chosen):
            return of_class.wrong_run(self, chosen, given)
        architecture, run = self.with_run(settings)
        of_run = run_constraints(type(architecture)) if architecture.is_language_model() else ()
        about_given = (constraint for constraint in of_run if constraint.names & set(given))
        return first_mistake(about_given, vars(architecture) | vars(run))

    @checked(quantity=TEXT, settings=SETTINGS)
    def why_not(self, quantity: str, settings: Settings = None) -> str | None:
        """Return why a quantity has no prediction for a run, None if it has one."""
        _known([quantity])
        return of_point.why_not(quantity, *self.with_run(settings))

    @checked(quantity=TEXT, settings=SETTINGS)
    def predict(self, quantity: str, settings: Settings = None) -> Breakdown:
        """Return a quantity, or a count by a convention; see `predictions`.

        Raises InputError with the reason if it has none.
        """
        return self.predictions([quantity], settings)[quantity]

    @checked(quantities=TEXTS, settings=SETTINGS)
    def predictions(self, quantities: Sequence[str], settings: Settings = None) -> Predictions:
        """Return several quantities; those without a value are `missing`, with the reason.

        They are predicted by formula. Of the class that a config.json names, or of `implementation:
        transformers`, what was compared with that class is predicted, and for all else it is
        traced.
        """
        from modelbudget.api import of_class

        _known(quantities)
        chosen = {**self.chosen, **fields_of(settings)}
        if answer := of_class.answer(self, quantities, chosen):
            return Predictions(self, *answer)._with_settings(chosen)
        a, run = self.with_run(settings)
        found = {one: of_point.terms_or_reason(one, a, run) for one in quantities}
        missing = {one: why for one, (_, why) in found.items() if why}
        breakdowns = {
            one: of_terms(self.label, one, terms) for one, (terms, why) in found.items() if not why
        }
        notes = (
            *of_class.line_of_ours(self, chosen),
            *line_of_adapter(run, breakdowns),
            *line_of_optimizer(run, breakdowns),
            *lines_of_weights(run, breakdowns, _file_bytes(a, run), self.base.transformers),
        )
        return Predictions(self, run, breakdowns, missing, notes)._with_settings(chosen)

    def parameters(self) -> Breakdown:
        """Predict the parameters by component."""
        return self.predict("parameters")

    @checked(settings=SETTINGS)
    def memory(self, settings: Settings = None) -> Predictions:
        """Predict all memory of training and inference, in bytes."""
        wanted = [quantity for quantity in QUANTITIES if quantity.endswith("_bytes")]
        return self.predictions(wanted, settings)

    @checked(settings=SETTINGS)
    def flops(self, settings: Settings = None) -> Predictions:
        """Predict the FLOPs of forward, backward and of one decoded token."""
        return self.predictions([q for q in QUANTITIES if q.startswith("flops")], settings)

    @checked(settings=SETTINGS)
    def conventions(self, settings: Settings = None) -> Counts:
        """Count parameters and FLOPs per training token as papers and training code do."""
        from modelbudget.api.conventions import counts

        return counts(self.label, *self.with_run(settings))

    @checked(component=TEXT, quantity=TEXT)
    def formula(self, component: str, quantity: str = "parameters") -> sympy.Expr:
        """Return the formula of all instances of a component, over the sizes of the model.

        Raises InputError if the model has no such component.
        """
        from modelbudget.api.formulas import of_component

        return of_component(self, component, quantity)

    @checked(
        accelerator=TEXT,
        settings=SETTINGS,
        devices=DEVICES,
        training=BOOLEAN,
        reserve=RESERVE,
        accelerators=NO_PATH_OR_PATH,
    )
    def fit(
        self,
        accelerator: str,
        settings: Settings = None,
        devices: int = 1,
        training: bool = True,
        reserve: str | int | None = None,
        accelerators: str | Path | None = None,
    ) -> Fit:
        """Return whether a step fits an accelerator, and the largest batch and length that do.

        `accelerator` is a name (of the file `accelerators`, if there is one of your own), or a size
        such as 24GB or 24GiB. `reserve` are bytes of it that
        hold no tensors, 1343 MiB if they are not given: a run that fits with them and 1.24 times
        the prediction `fits`, one that fits without is `tight` (configs/memory_margins.yaml).
        """
        from modelbudget.api.fitting import fit

        return fit(self, accelerator, settings, devices, training, reserve, accelerators)

    @checked(
        accelerator=TEXT,
        settings=SETTINGS,
        devices=DEVICES,
        reserve=RESERVE,
        accelerators=NO_PATH_OR_PATH,
    )
    def serve(
        self,
        accelerator: str,
        settings: Settings = None,
        devices: int = 1,
        reserve: str | int | None = None,
        accelerators: str | Path | None = None,
        draft: str | None = None,
    ) -> Serving:
        """Return how many requests of `length` tokens devices serve, with each term of memory.

        `accelerator` and `reserve` are those of `fit`. `draft`: a model that proposes tokens, or
        mtp: the model's own layers that do. The cache is in vLLM's pages unless `cache_layout` is
        set.
        """
        from modelbudget.api.serving import serve

        return serve(self, accelerator, settings, devices, reserve, accelerators, draft)

    @checked(settings=SETTINGS, quantities=TEXTS)
    def measure(
        self, settings: Settings = None, quantities: Sequence[str] = ("parameters",)
    ) -> Comparison:
        """Instantiate the model, trace it, and hold it against the formula. Needs torch."""
        from modelbudget.api.measuring import compare_model

        return compare_model(self, settings, quantities)

    @checked(settings=SETTINGS)
    def adapter_file(self, settings: Settings) -> int:
        """Return the bytes of the file that PEFT saves of a run's adapter. Raises InputError."""
        from modelbudget.files.adapter_file import adapter_file_bytes

        return adapter_file_bytes(self.base.transformers, *self.with_run(settings))

    def checkpoint(self) -> Checkpoint | None:
        """Hold the tensors of its safetensors or GGUF file against the formula, by headers alone.

        None for a name, a config.json, or a folder without such files. Raises InputError.
        """
        if self.weights is None:
            return None
        if self.weights.name.endswith(GGUF):
            from modelbudget.api.gguf import compare_gguf

            return compare_gguf(self, self.weights)
        from modelbudget.api.checkpoint import compare_checkpoint

        return compare_checkpoint(self, self.weights)

    def __repr__(self) -> str:
        return f"<Model {self.label}, {self.base.family.name()}>"

    def _repr_html_(self) -> str:
        if self.why_not("parameters"):
            return html_table(repr(self), [self.architecture.model_dump()])
        return self.parameters()._repr_html_()


@dataclass(frozen=True)
class Predictions(Frames):
    """Several quantities of one model in one run; `missing` has the reasons of the others.

    `notes` say what was traced of a class, and by how much our own modules differ from it.
    """

    model: Model
    run: RunConfig
    breakdowns: dict[str, Breakdown]
    missing: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def whose(self) -> str:
        """The implementation that the memory and the FLOPs are about, and its class."""
        from modelbudget.api.of_class import class_of

        name = self.run.implementation
        return f"{name} ({class_of(self.model)})" if name == TRANSFORMERS else name

    @property
    def notes_of_file(self) -> list[str]:
        """Lines about the config.json: of a class, not those on keys that our modules ignore."""
        is_class = self.run.implementation == TRANSFORMERS
        notes = self.model.base.notes
        return [one.text for one in notes if not (is_class and one.is_of_our_modules)]

    def _with_settings(self, chosen: Mapping[str, Any]) -> Predictions:
        """Add the settings of the run to what depends on them, and why its kernel is math."""
        settings = line_of_settings(self.run)
        breakdowns = {
            quantity: one if quantity in WITHOUT_RUN else replace(one, settings=settings)
            for quantity, one in self.breakdowns.items()
        }
        return replace(self, breakdowns=breakdowns)._with_kernel(chosen)

    def _with_kernel(self, chosen: Mapping[str, Any]) -> Predictions:
        """Add why attention has its scores in memory, if nobody has set that."""
        is_set = KERNEL in {**self.model.base.fields, **self.model.base.derive, **chosen}
        if is_set or self.run.attention_kernel != "math" or self.breakdowns.keys() <= {*OF_WEIGHTS}:
            return self
        architecture, run = self.model.with_run({**chosen, **self.run.model_dump()})
        why = why_math(architecture, run)
        return replace(self, notes=(*self.notes, f"{KERNEL}: math, {why}")) if why else self

    @property
    def how(self) -> str:
        """How the quantities were found: by formula, by a trace, or some by each."""
        traced = [name for name, one in self.breakdowns.items() if one.source != FORMULA]
        if not traced:
            return "predicted by formula"
        if len(traced) == len(self.breakdowns):
            return "traced"
        return "predicted by formula, or traced where that is said"

    @checked(quantity=TEXT)
    def __getitem__(self, quantity: str) -> Breakdown:
        if quantity in self.missing:
            raise InputError([f"{self.model.name}: {quantity}: {self.missing[quantity]}"])
        if quantity not in self.breakdowns:
            allowed = offered(quantity, [*self.breakdowns, *self.missing], "")
            raise InputError([f"quantity = {show(quantity)}: not among the predictions{allowed}"])
        return self.breakdowns[quantity]

    def totals(self) -> dict[str, int]:
        """Return quantity → value of the whole model."""
        return {quantity: one.total for quantity, one in self.breakdowns.items()}

    def rows(self) -> list[dict]:
        """Return one row for each component × quantity."""
        return [row for one in self.breakdowns.values() for row in one.rows()]

    def __repr__(self) -> str:
        totals = ", ".join(f"{name} {total:,}" for name, total in self.totals().items())
        lines = "; ".join([line_of_settings(self.run), totals, *self.notes])
        return f"<Predictions of {self.model.label}: {lines}>"

    def _repr_html_(self) -> str:
        tables = "".join(one._repr_html_() for one in self.breakdowns.values())
        return tables + "".join(f"<p>{escape(line)}</p>" for line in self.notes)


@checked(name=NAME)
def model(name: str | os.PathLike[str], /, **fields: Any) -> Model:
    """Return a model by name, config.json or folder; `fields` override single sizes.

    Raises InputError with what is allowed; of a series without some of its sizes, its models.
    """
    name = str(name)
    weights = Path(name) if name.endswith(GGUF) else checkpoint_files.find(name)
    found = Model(find(name), fields_of(fields), weights)
    missing = missing_fields(found.base, found.chosen)
    if missing and (models := models_of_series(name)):
        sizes = ", ".join(missing)
        raise InputError([f"{name}: a series; allowed: {models}, or values of {sizes}"])
    found.with_run()  # complete and valid, or an error now
    return found


def model_with(name: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> Model:
    """Return a model with the sizes among `given` fields; the others must allow it to run.

    `usual`: fields of the run where they are not given. Raises InputError.
    """
    sizes = {field: value for field, value in given.items() if field not in RunConfig.model_fields}
    found = model(name, **sizes)
    if mistake := found.wrong_run({**usual, **given}, given):
        raise InputError([f"{name}: {mistake}"])
    return found
