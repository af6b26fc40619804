"""Predictions of several quantities of a model: by formula, or by a trace of its class."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from modelbudget.api import class_answers
from modelbudget.api.arguments import checked
from modelbudget.api.breakdown import FORMULA, Breakdown, of_terms
from modelbudget.api.chosen_model import ChosenModel, Settings, fields_of
from modelbudget.api.frames import Frames
from modelbudget.api.lines_of_run import (
    IN_VLLM,
    line_of_positions,
    line_of_recurrence,
    line_of_settings,
    lines_of_run,
)
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.terms import total
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.predict import prediction_or_reason
from modelbudget.sweeps.device_defaults import KERNEL, mask_of_heads, where_not_flash, why_math

OF_WEIGHTS = ("parameters", "parameter_bytes")
OF_INFERENCE = ("cache_bytes", "peak_inference_bytes", "flops_forward", "flops_decode")
OF_TRAINING = (
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes",
    "flops_forward", "flops_backward",
)  # fmt: skip
QUANTITIES = tuple(dict.fromkeys(OF_WEIGHTS + OF_INFERENCE + OF_TRAINING))
"""Quantities with formulas, in the order in which they are shown."""
WITHOUT_RUN = frozenset({"parameters", *BY_NAME})
"""Quantities that are the same in every run on one device."""
UNSHOWN = ("file_bytes", "request_bytes")
"""Quantities that no table shows which does not ask for them: of a file, of an engine."""


def wrong_run(model: ChosenModel, settings: Settings, given: Collection[str]) -> str | None:
    """Return why a run is not allowed, if it is because of a field among `given`."""
    chosen = {**model.chosen, **fields_of(settings)}
    if class_answers.leads(model, chosen):
        return class_answers.wrong_run(model, chosen, given)
    architecture, run = model.with_run(settings)
    of_run = run_constraints(type(architecture)) if architecture.is_language_model() else ()
    constraints = (constraint for constraint in of_run if constraint.names & set(given))
    return first_mistake(constraints, vars(architecture) | vars(run))


def predictions(
    model: ChosenModel, quantities: Sequence[str], settings: Settings = None
) -> Predictions:
    """Return several quantities; see `Model.predictions`."""
    must_be_known(quantities)
    chosen = {**model.chosen, **fields_of(settings)}
    answer = class_answers.answer(model, quantities, chosen)
    if isinstance(answer, str):
        ours = predictions(model, quantities, {**chosen, "implementation": OURS})
        return replace(ours, notes=(answer, *ours.notes))._with_settings(chosen)
    if answer:
        return Predictions(model, *answer)._with_settings(chosen)
    a, run = model.with_run(settings)
    terms_of = {
        quantity: prediction_or_reason.terms_or_reason(quantity, a, run) for quantity in quantities
    }
    missing = {quantity: why for quantity, (_, why) in terms_of.items() if why}
    breakdowns = {
        quantity: of_terms(model.label, quantity, terms)
        for quantity, (terms, why) in terms_of.items()
        if not why
    }
    notes = (
        *class_answers.line_of_ours(model, chosen, a, run, quantities),
        *lines_of_run(a, run, breakdowns, model.base.transformers),
    )
    return Predictions(model, run, breakdowns, missing, notes)._with_settings(chosen)


@dataclass(frozen=True)
class Predictions(Frames):
    """Several quantities of one model in one run; `missing` has the reasons of the others.

    `notes` say what was traced of a class, and by how much our own modules differ from it; `chosen`
    names the settings of the run that the reader has set.
    """

    model: ChosenModel
    run: RunConfig
    breakdowns: dict[str, Breakdown]
    missing: dict[str, str]
    notes: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()

    @property
    def whose(self) -> str:
        """The implementation that the memory and the FLOPs are about, and its class."""
        name = self.run.implementation
        return f"{name} ({class_answers.class_of(self.model)})" if name == TRANSFORMERS else name

    @property
    def settings(self) -> str:
        """The settings of the run as text."""
        return line_of_settings(self.run, self.model.base.family)

    @property
    def notes_of_file(self) -> list[str]:
        """Lines about the config.json: of a class, not those on keys that our modules ignore."""
        is_class = self.run.implementation == TRANSFORMERS
        lines = [
            note.text
            for note in self.model.base.notes
            if (note.about != "serving" or self.run.cache_layout == "paged")
            and note.settles not in self.chosen
            and not (is_class and note.is_of_our_modules)
        ]
        if left_out := self.model.base.left_out:
            lines.append(
                f"only the language model: what reads images or sound has {left_out:,} parameters"
            )
        return lines

    def _with_settings(self, chosen: Mapping[str, Any]) -> Predictions:
        """Add the settings of the run to what depends on them, and why its kernel is math."""
        breakdowns = {
            quantity: breakdown
            if quantity in WITHOUT_RUN
            else replace(breakdown, settings=self.settings)
            for quantity, breakdown in self.breakdowns.items()
        }
        fields = {**self.model.base.fields, **chosen}
        then = IN_VLLM if "cache_bytes" in self.breakdowns else ""
        notes = (
            *self.notes,
            *line_of_recurrence(self.model.architecture, self.breakdowns),
            *line_of_positions(fields, self.run.length, then),
        )
        answer = replace(self, breakdowns=breakdowns, notes=notes, chosen=frozenset(chosen))
        return answer._with_kernel(chosen)

    def _with_kernel(self, chosen: Mapping[str, Any]) -> Predictions:
        """Add why attention has scores or a mask in memory, or two kernels, if nobody set that."""
        is_set = KERNEL in {**self.model.base.fields, **self.model.base.derive, **chosen}
        if is_set or self.breakdowns.keys() <= {*OF_WEIGHTS}:
            return self
        architecture, run = self.model.with_run({**chosen, **self.run.model_dump()})
        why = {"math": why_math, "flash": where_not_flash}.get(run.attention_kernel)
        if run.attention_kernel == "efficient" and run.implementation == OURS:
            why = mask_of_heads
        reason = why(architecture, run) if why else None
        text = f"{KERNEL}: {run.attention_kernel}, {reason}"
        return replace(self, notes=(*self.notes, text)) if reason else self

    @property
    def active_parameters(self) -> int | None:
        """What a token uses of a mixture of experts, its embedding included; None of others."""
        a, _ = self.model.with_run(self.run)
        of_token = getattr(a, "active_parameters", None)
        return total(of_token(a)) if of_token and getattr(a, "n_expert", 0) else None

    @property
    def how(self) -> str:
        """How the quantities were found: by formula, by a trace, or some by each."""
        traced = [
            name for name, breakdown in self.breakdowns.items() if breakdown.source != FORMULA
        ]
        if not traced:
            return "predicted by formula"
        if len(traced) == len(self.breakdowns):
            return "traced"
        return "predicted by formula, or traced where that is said"

    def __iter__(self) -> Iterator[str]:
        return iter(self.breakdowns)

    @checked()
    def __getitem__(self, quantity: str) -> Breakdown:
        if quantity in self.missing:
            raise InputError([f"{self.model.name}: {quantity}: {self.missing[quantity]}"])
        if quantity not in self.breakdowns:
            allowed = offered(quantity, [*self.breakdowns, *self.missing], "")
            raise InputError([f"quantity = {show(quantity)}: not among the predictions{allowed}"])
        return self.breakdowns[quantity]

    def totals(self) -> dict[str, int]:
        """Return quantity → value of the whole model."""
        return {quantity: breakdown.total for quantity, breakdown in self.breakdowns.items()}

    def rows(self) -> list[dict]:
        """Return one row for each component × quantity."""
        return [row for breakdown in self.breakdowns.values() for row in breakdown.rows()]

    def __repr__(self) -> str:
        totals = ", ".join(f"{name} {total:,}" for name, total in self.totals().items())
        lines = "; ".join([self.settings, totals, *self.notes])
        return f"<Predictions of {self.model.label}: {lines}>"

    def _repr_html_(self) -> str:
        tables = "".join(breakdown._repr_html_() for breakdown in self.breakdowns.values())
        return tables + "".join(f"<p>{escape(line)}</p>" for line in self.notes)


def must_be_known(quantities: Collection[str]) -> None:
    """Raise InputError for a quantity that is unknown."""
    known = (*QUANTITIES, *UNSHOWN, *BY_NAME)
    if unknown := [name for name in quantities if name not in known]:
        lines = [f"quantity = {show(name)}: unknown{offered(name, known, '')}" for name in unknown]
        raise InputError(lines)


def merged(first: Predictions, second: Predictions) -> Predictions:
    """Return the quantities of both, of one model; the run is that of the first."""
    return replace(
        first,
        breakdowns=first.breakdowns | second.breakdowns,
        missing=first.missing | second.missing,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )
