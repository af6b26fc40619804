"""What the page's calculator reads from programs, where no closed formula holds."""

from collections.abc import Mapping
from functools import partial
from itertools import chain, product
from types import SimpleNamespace
from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.operations import largest
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.run_step import HALF
from modelbudget.families.decoder import Decoder
from modelbudget.predict.of_program import USES, quantities
from modelbudget.regimes.regime import Regime, traced

BY_PROGRAM = ("peak_inference_bytes",)
"""Quantities of which the page has regimes, in half precision: a run with symbols takes a tenth of
a second. One of training takes longer than the page may."""
LENGTH, BATCHES = 1024, (1, 2)
"""Runs of the examples: of one sequence and of several."""
Categories = tuple[tuple[str, str], ...]


class Programs:
    """Regimes of the models of the catalogue that have no closed formula.

    `examples`: models by their categorical fields.
    """

    def __init__(self, examples: Mapping[Categories, tuple[Architecture, ...]]):
        self.examples = examples
        self._regimes: dict[tuple, list[Regime]] = {}

    def peak(self, quantity: str, a: SimpleNamespace, r: SimpleNamespace) -> tuple[Any, Any]:
        """Return a peak in the reading of the fields, and where it holds: nowhere is 0.

        Where two regimes hold both are exact, and so is the larger.
        """
        fields = vars(a) | vars(r)
        peaks, holds = [], []
        for regime in self._of(quantity, a, r) if r.dtype in HALF else ():
            is_here, values = regime.holds(fields), regime.read(fields)
            phases = regime.quantities[quantity].values()
            peaks.append(largest(*map(values.of, phases)) * is_here)
            holds.append(is_here)
        return (largest(*peaks), largest(*holds)) if holds else (0, 0)

    def _of(self, quantity: str, a: SimpleNamespace, r: SimpleNamespace) -> list[Regime]:
        categories = tuple((name, getattr(a, name)) for name in Decoder.categorical())
        settings = vars(r) | {"length": LENGTH, "recompute": "none"}  # nothing is computed again
        key = quantity, categories, *(n for name, n in settings.items() if name != "batch")
        if key not in self._regimes:
            self._regimes[key] = self._traced(quantity, categories, settings)
        return self._regimes[key]

    def _traced(self, quantity: str, categories: Categories, settings: dict) -> list[Regime]:
        regimes: list[Regime] = []
        others = [of_run for key, of_run in self._regimes.items() if key[1] == categories]
        for a, batch in product(self.examples.get(categories, ()), BATCHES):
            run = RunConfig.model_validate(settings | {"batch": batch})
            if run_mistake(a, run) or a.has_formula_for(quantity, a, run):
                continue
            numbers = dict(a) | dict(run)
            if not any(regime.holds(numbers) for regime in regimes):
                varying = {*Decoder.numeric(), "batch", "length"}
                of_model = partial(quantities, USES[quantity])
                regimes.append(traced(of_model, a, run, varying, like=[*chain(*others), *regimes]))
        return [regime for regime in regimes if quantity in regime.quantities]
