"""A model and what is predicted of it. Imports neither tables, torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from modelbudget.api.find import find
from modelbudget.api.values import Budget, Component, Values
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import first_mistake
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.models import Base
from modelbudget.common.errors import InputError
from modelbudget.predict.formula import formula
from modelbudget.sweep.check_quantities import quantity_constraints
from modelbudget.sweep.derive import FIELDS_OF_RUN, record, resolve, with_expression

PARAMETERS = ("parameters", "parameter_bytes")
TRAINING = ("gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes")
INFERENCE = ("cache_bytes", "peak_inference_bytes")
FLOPS_OF_TRAINING = ("flops_forward", "flops_backward")
FLOPS_OF_INFERENCE = ("flops_decode",)
NO_FORMULA = "no formula; it can be measured"


def model(name: str, **fields: Any) -> Model:
    """Return a model by name, by its config.json, or by a function of one's own (`find`).

    `fields` override its own: `model("gpt-2-124m", n_layer=24)`. Raises InputError with the
    mistakes in them.
    """
    return Model(find(name), tuple(fields.items()))


@dataclass(frozen=True)
class Model:
    """A sequence model: its architecture, and what formulas say of its budget.

    Values are of the modules of `modelbudget` unless a run has another `implementation`.
    """

    base: Base
    fields: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """What the model is called, such as `PaLM 540B`."""
        return self.base.label

    @cached_property
    def architecture(self) -> Architecture:
        """The sizes and switches of the model. Raises InputError."""
        return self._resolved({})[0]

    def run(self, **settings: Any) -> RunConfig:
        """Return run settings with what follows from them: length, and an implementation's own.

        Raises InputError.
        """
        return self._resolved(settings)[1]

    def parameters(self) -> Values:
        """Count parameters by component. Raises InputError if they have no formula."""
        return self._one("parameters", self.run())

    def memory(self, run: RunConfig | None = None, **settings: Any) -> Budget:
        """Predict bytes: of parameters, in training, and in inference."""
        return self.budget((*PARAMETERS[1:], *TRAINING, *INFERENCE), run, **settings)

    def flops(self, run: RunConfig | None = None, **settings: Any) -> Budget:
        """Predict the FLOPs of matrix products: two for a multiplication and a sum."""
        return self.budget((*FLOPS_OF_TRAINING, *FLOPS_OF_INFERENCE), run, **settings)

    def budget(
        self, quantities: Iterable[str], run: RunConfig | None = None, **settings: Any
    ) -> Budget:
        """Predict quantities of a run.

        A run is given by its settings, or as a record, of which the settings that were set count.
        Raises InputError if the settings are wrong or the model does not allow them; a single
        quantity that is not defined or has no formula is `missing`.
        """
        run = self.run(**(_given(run) | settings))
        found, missing = {}, {}
        for quantity in quantities:
            try:
                found[quantity] = self._one(quantity, run)
            except InputError as error:
                missing[quantity] = str(error)
        return Budget(self.name, found, missing)

    def _one(self, quantity: str, run: RunConfig) -> Values:
        a = self.architecture
        checks = quantity_constraints(type(a), (quantity,))
        if mistake := first_mistake(checks, vars(a) | vars(run)):
            raise InputError([mistake])
        terms, holds = formula(type(a), quantity, a, run)
        if not holds:
            raise InputError([f"{quantity}: {NO_FORMULA}"])
        found = (
            Component(name, term.total, term.each, term.instances) for name, term in terms.items()
        )
        components = tuple(one for one in found if one.total)
        return Values(quantity, components, "predicted", run.implementation)

    def _resolved(self, settings: dict[str, Any]) -> tuple[Architecture, RunConfig]:
        base, chosen = self.base, dict(self.fields) | settings
        known = base.family.model_fields.keys() | FIELDS_OF_RUN
        if unknown := [name for name in chosen if name not in known]:
            raise InputError([_unknown(name, sorted(known)) for name in unknown])
        try:
            values = resolve(base, chosen, {})
            follow = with_expression(base, {})
            of_run = {name: value for name, value in values.items() if name in FIELDS_OF_RUN}
            of_model = {name: value for name, value in values.items() if name not in of_run}
            return record(base.family, of_model, follow), record(RunConfig, of_run, follow)
        except ValueError as error:
            raise InputError([f"{base.name}: {line}" for line in str(error).splitlines()]) from None


def _unknown(name: str, known: list[str]) -> str:
    from modelbudget.common.suggestions import offered

    return f"{name}: unknown field{offered(name, known, 'docs/fields.md')}"


def _given(run: RunConfig | None) -> dict[str, Any]:
    return run.model_dump(exclude_unset=True) if run else {}
