"""The forms of the calculator: the formulas of the decoders with equal categorical fields."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.memoised_run import MemoisedRun
from modelbudget.architecture.run_values import BYTES, division
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.common.expressions import Expression
from modelbudget.components.groups import group_of
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_runs import (
    ALONE_CHOICES,
    CHOICES,
    OF_CLASSES,
    OF_PROGRAMS,
    PARTS,
    STATES,
    Run,
    Settings,
    is_whole,
    run_of,
    runs,
    with_foreach,
)
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.component_order import sort_key
from modelbudget.report.packing import in_columns, with_lists
from modelbudget.report.page_programs import (
    Categories,
    Programs,
    beyond_caches,
    caches,
    training_peak,
)


class _Value(NamedTuple):
    """A quantity, its components, and where it is known."""

    whole: Any
    parts: Terms
    holds: Any


class Formulas:
    """The nodes of all groups of models; equal expressions are one node.

    `budgets` has the total of a quantity with its components, and its index.
    """

    def __init__(self, examples: Mapping[Categories | str, Sequence[Architecture]]):
        self.programs = Programs(examples)
        self.graph = graph.Graph()
        self.budgets: dict[tuple, int] = {}
        self._results: dict[tuple, dict] = {}

    def form(self, categories: dict[str, str], classes: list[str], peaks: bool) -> dict:
        """Return the nodes of the decoders with these categorical fields.

        `classes`: those of transformers whose run settings are known, which have peaks as well.
        """
        a = graph.namespace(Decoder, categories)
        vars(a).update(CHOICES.absent)
        parameters, active = Decoder.parameters(a), Decoder.active_parameters(a)
        return {
            "categories": categories,
            "components": {  # the number of instances, all of them, and the fields in them
                name: [
                    *map(self.graph.node, (term.instances, term.total)),
                    sorted(set().union(*map(self.graph.sizes, (*term, *active.get(name, ()))))),
                ]
                for name, term in parameters.items()
            },
            "total": self.graph.node(total(parameters)),
            "active": self.graph.node(total(active)),
            "runs": self._runs(
                a, runs(categories, peaks), [*PARTS, *(CHOICES.peaks if peaks else ())]
            ),
            "classes": {
                name: self._runs(a, runs(categories), [OF_CLASSES], name) for name in classes
            },
        }

    def _runs(self, a, runs: list[Settings], quantities: list[str], class_name: str = "") -> dict:
        """Return the quantities of each run as columns; dtypes of one size have one formula."""
        by_size: dict[tuple, dict] = {}
        by_choices = {}
        for choices in runs:
            by_bytes = tuple((choices | {"dtype": BYTES[choices["dtype"]]}).values())
            if by_bytes not in by_size:
                by_size[by_bytes] = self._run(a, choices, quantities, class_name)
            by_choices[" ".join(map(str, choices.values()))] = by_size[by_bytes]
        return in_columns(by_choices)

    def _run(
        self, record, choices: Settings, quantities: list[str], class_name: str
    ) -> dict[str, list]:
        """Return for each quantity its budget, and the node of whether its formula holds.

        Quantities whose formula never holds are left out, and those of inference if the run is not
        of one device.
        """
        is_alone = choices | ALONE_CHOICES == choices
        of_class = implementations()[TRANSFORMERS].of_class(class_name) if class_name else {}
        key = tuple(choices.items()), tuple(of_class.items())
        training = run_of(*key, divided=True)
        if class_name:
            training = _compared(class_name, run_of(*key, divided=False))
        if training is not None:
            training = training._replace(settings=with_foreach(record, training.settings))
        inference = run_of(*key, divided=False) if is_alone else None
        budgets, sums = {}, {}
        for quantity in quantities:
            run = inference if quantity in CHOICES.of_inference else training
            if run is None:
                continue
            value = self._read(quantity, record, run.settings, sums)
            if of_class and is_alone and self.graph.constant(self.graph.node(value.holds)) == 0:
                value, run = self._of_class(class_name, record, run)
            sums[quantity] = value.whole
            holds = self.graph.node(run.holds * value.holds)
            if self.graph.constant(holds) != 0:
                budgets[quantity] = [self._budget(value.whole, value.parts), holds]
        if "optimizer_bytes" in budgets:
            states = sum(sums[f"{name}_bytes"] for name in ("parameter", "gradient", "optimizer"))
            budgets[STATES] = [self._budget(states, {}), budgets["optimizer_bytes"][1]]
        return budgets

    def _of_class(self, class_name: str, record, run: Run) -> tuple[_Value, Run]:
        """Return the peak of a class without a closed formula: of one device.

        By math only with the norms and RoPE of Llama's class: of others it takes seconds.
        """
        norm_and_rope = run.settings.norm_kernel, run.settings.rope_layout
        if run.settings.attention_kernel == "math" and norm_and_rope != ("written_out", "token"):
            return _Value(0, {}, 0), Run(SimpleNamespace())
        settings = with_foreach(record, run.settings)
        settings.foreach = bool(settings.foreach)
        sizes, holds = self.programs.largest(training_peak, record, settings, class_name)
        return _Value(sizes.get("model", 0), {}, holds), run

    def _read(self, quantity: str, record, r, sums: Mapping[str, Any]) -> _Value:
        """Return a quantity, its components, and where it is known.

        The peak of inference: parameters, caches, and what its program has beyond. `sums`: of the
        quantities before.
        """
        if quantity == OF_PROGRAMS:
            sizes, holds = self.programs.largest(beyond_caches, record, r)
            holds = holds * self._read("cache_bytes", record, r, sums).holds
            kept = total(Decoder.parameter_bytes(record, r)) + sums["cache_bytes"]
            return _Value(kept + sizes.get("model", 0), {}, holds)
        noted = MemoisedRun(vars(r), self._results)
        a, holds = self._with_formula(quantity, record, noted)
        if self.graph.constant(self.graph.node(holds)) != 0:
            terms = noted.once(getattr(Decoder, quantity), a)
        elif quantity == "cache_bytes":
            sizes, holds = self.programs.largest(caches, a, r)
            terms = {name: Term(size) for name, size in sizes.items()}
        else:
            terms = {}
        if quantity in CHOICES.peaks:
            peak = largest(*(term.total for term in terms.values())) if terms else 0
            return _Value(peak, {}, holds)
        return _Value(total(terms), terms, holds)

    def _with_formula(self, quantity: str, a, r: MemoisedRun) -> tuple[Any, Any]:
        """Return the fields, and where the formula holds: at least where no first layer is dense.

        Only models with experts can have dense first layers.
        """
        known = Decoder.has_formula_for
        without_dense = SimpleNamespace(**vars(a) | {"n_dense_layer": 0})
        if a.mlps == "mlp":
            return without_dense, r.once(known, quantity, without_dense)
        holds = r.once(known, quantity, a)
        if self.graph.constant(self.graph.node(holds)) != 0:
            return a, holds
        without = 1 - positive(a.n_dense_layer)
        return without_dense, without * r.once(known, quantity, without_dense)

    def _budget(self, whole, terms: Terms) -> int:
        parts = ((name, self.graph.node(term.total)) for name, term in terms.items())
        zero = self.graph.node(0)
        budget = (self.graph.node(whole), *(part for part in parts if part[1] != zero))
        return self.budgets.setdefault(budget, len(self.budgets))


def _compared(class_name: str, run: Run | None) -> Run | None:
    """Return a run where formulas were compared with a class: no device divides its matrices."""
    if run is None:
        return None
    of_class = implementations()[TRANSFORMERS].classes[class_name]
    values = vars(run.settings) | {"tensor_parallel": 1}
    if division(SimpleNamespace(**values)) and not Expression(of_class.divided)(values):
        return None
    return run._replace(holds=is_whole())


def formulas(
    classes: Mapping[Categories, list[str]],
    examples: Mapping[Categories | str, Sequence[Architecture]],
) -> dict:
    """Return the nodes for the script, and how components and budgets are made of them.

    `classes`: by the categorical fields of each form, those with known run settings. `examples`:
    the models that have peaks, by their categorical fields and by their classes.
    """
    collected = Formulas(examples)
    forms = [
        collected.form(dict(values), names, values in examples) for values, names in classes.items()
    ]
    names = [name for form in forms for name in form["components"]]
    names += [name for _, *parts in collected.budgets for name, _ in parts]
    components = sorted(dict.fromkeys(names), key=sort_key)
    return {
        "forms": {key: [form[key] for form in forms] for key in forms[0]},
        "graph": collected.graph.data(),
        "budgets": with_lists(collected.budgets),
        "groups": [(name, variable_of_group(group_of(name))) for name in components],
    }
