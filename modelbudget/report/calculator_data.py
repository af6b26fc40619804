"""The calculator of the page: every decoder of the catalogue, with fields that a reader can change.

The page has no formulas of its own: a script evaluates the nodes of `evaluators/graph.py`.
Conditions and the translation of config.json files are expressions, which Vega's interpreter
evaluates without eval.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic import ValidationError

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.counting_conventions import CONVENTIONS, FLOPS, PARAMETERS
from modelbudget.architecture.evaluators import graph, vega_constraints
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_step import HALF
from modelbudget.architecture.run_values import BYTES
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import ACCELERATORS
from modelbudget.components.groups import MEMORY, ORDER, group_of
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_columns import RunColumns, as_steps
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import field_title
from modelbudget.report.component_order import sort_key
from modelbudget.report.config_translation import (
    OF_FILES,
    default_decoders,
    follower,
    translation_data,
)
from modelbudget.report.page_programs import Programs
from modelbudget.report.read_settings import OnceForReadSettings
from modelbudget.sweeps.compared import not_compared
from modelbudget.sweeps.derive import named_architecture, settled
from modelbudget.sweeps.device_defaults import KERNEL, device_defaults, refused_kernels

START, START_LENGTH = "llama-3-8b", 8192
"""Model and length of the answer that a reader finds: those of the acts."""
MAIN = (
    "n_vocab", "n_ctx", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff", "n_expert",
    "n_expert_per_token", "d_expert", "gated", "tied", "head_bias",
)  # fmt: skip
"""Fields at the top of the table; the others are below, in a closed part."""
OF_RUN = (
    "batch", "length", "data_parallel", "tensor_parallel", "sequence_parallel",
    "pipeline_parallel", "n_microbatch",
)  # fmt: skip
CHOICES_OF_RUN = {
    "dtype": ("of parameters, activations and cache", (*HALF, "float32")),
    "attention_kernel": (
        "scores in memory (math) or not (flash, efficient)",
        ("flash", "efficient", "math"),
    ),
    "recompute": ("activations of layers kept, or computed again (full)", ("none", "full")),
    "zero": (
        "divided among data-parallel devices: 0: nothing; 1: optimizer states, with float32 master "
        "weights and gradients (Megatron-Core); 2, 3: all, gathered for a step or for a layer "
        "(FSDP2)",
        (3, 2, 1, 0),
    ),
    "pipeline_schedule": (
        "all forward passes first, or one forward and one backward pass in turn",
        ("gpipe", "1f1b"),
    ),
    "pipeline_rank": ("the stage whose bytes these are", ("first", "last")),
}
"""Categorical run settings with a description and their choices in the page, the first at first;
of kernels, the first with which torch runs the model on a GPU.

With the sizes in OF_RUN these are the run settings that a reader can change; all others have their
defaults, but for those in BROUGHT.
"""
OF_SEVERAL = {
    "zero": "data_parallel",
    "sequence_parallel": "tensor_parallel",
    "pipeline_schedule": "pipeline_parallel",
    "n_microbatch": "pipeline_parallel",
    "pipeline_rank": "pipeline_parallel",
}
"""Settings of how devices share a model, and the number of these devices.

One device has nothing to share: these settings then have their defaults.
"""
BROUGHT = {"zero": {1: {"master_weights": True, "gradient_casts": "accumulated"}}}
"""Settings that a choice brings with it: those with which it is known."""
ZERO_OF_STAGES, ZERO_OF_OTHERS = (0, 1), (0, 3)
"""`zero` in the page of stages of published models, and of all other models, without stages.

The formulas of shards in a stage would double the page's; the command line has them.
"""
DESCRIPTIONS = {
    "data_parallel": "devices that each compute a batch of their own; bytes are the first one’s"
}
"""Of fields of which the page has only some of the uses."""
STATES = "states"
QUANTITIES = {
    "parameter_bytes": "bytes of parameters",
    "gradient_bytes": "bytes of gradients",
    "optimizer_bytes": "bytes of AdamW state",
    STATES: "bytes of these three",
    "activation_bytes": "bytes of activations",
    "flops_forward": "FLOPs of the forward pass",
    "flops_backward": "FLOPs of the backward pass",
    "cache_bytes": "bytes of KV cache",
}
PARTS = [name for name in QUANTITIES if name != STATES]
"""Quantities with components, computed one by one."""
PEAKS = {
    "peak_training_bytes": "bytes at the peak of training",
    "peak_inference_bytes": "bytes at the peak of inference",
}
"""Quantities without components: the largest of all phases."""
OTHERS = {
    "parameter_bytes": ("weights", (*OF_FILES, "fp8-channel", "int4-group", "mxfp4")),
    "optimizer_bytes": ("optimizer", ("adamw-8bit", "adafactor", "muon", "lion")),
}
"""Quantities that the page has with other values of one setting too: of one device, in 16 bits."""
OF_CLASSES = "peak_training_bytes"
"""The quantity that the page has of classes of `transformers` as well."""
OF_INFERENCE = ("cache_bytes", "peak_inference_bytes")
"""Quantities of one device, whatever the number of those that train."""
BY_PROGRAM = "peak_inference_bytes"
"""The quantity that the page has of programs, of published models and others with their words."""
Settings = dict[str, Any]
ALONE: Settings = {name: RunConfig.model_fields[name].default for name in OF_SEVERAL}
"""Settings of a model that one device computes."""
ABSENT = {"n_mtp_layer": 0}
"""Fields that the page does not compute with, and their only value there: each formula would have
its terms for layers twice.
"""
Categories = tuple[tuple[str, str], ...]
"""Categorical fields of an architecture with their values."""
EXCHANGEABLE = "mlps"
"""The categorical field that a reader can change: dense MLPs or experts."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""Experts of a model that had none: those of Mixtral, each as wide as the MLP was."""


SWITCHES = [
    name
    for kind in (Decoder, RunConfig)
    for name, field in kind.model_fields.items()
    if field.annotation is bool
]


def kernels() -> list[tuple[str, list[str]]]:
    """Return the attention kernels in torch's order, and why the default is another one.

    The reasons are Vega expressions as those of `rules`, which have more of them.
    """
    refused = refused_kernels(Decoder)  # pyright: ignore[reportArgumentType]
    _, all_of = CHOICES_OF_RUN[KERNEL]
    return [
        (name, [vega_constraints.mistake(one, SWITCHES) for one in refused.get(name, ())])
        for name in all_of
    ]


def rules() -> list[dict]:
    """Return every constraint of a decoder and its run, as `mistake` and `fields`.

    `mistake` is a Vega expression whose value is the message, or empty if the constraint holds;
    `fields` are the fields that it reads.
    """
    # A class is hashable even where its instances seem not to be.
    checks = [*Decoder.all_constraints(), *RunConfig.all_constraints(), *run_constraints(Decoder)]  # pyright: ignore[reportArgumentType]
    # Checks that are not expressions are about layers without mixer and MLP; no model here has any.
    constraints = [check for check in checks if isinstance(check, Constraint)]
    return [
        {"mistake": vega_constraints.mistake(one, SWITCHES), "fields": sorted(one.names)}
        for one in [*_upper_bounds(), *_absent(), *constraints]
    ]


def _absent() -> list[Constraint]:
    """Return the constraints on fields that the page does not compute with."""
    return [
        Constraint(
            f"{name} == {value}",
            f"{name} = {{{name}}}: not computed on this page; allowed: {value}",
        )
        for name, value in ABSENT.items()
    ]


def _upper_bounds() -> list[Constraint]:
    """Return the upper bounds of fields below the limit of exact numbers in a browser."""
    return [
        Constraint(f"{name} <= {rule.le}", f"{name} = {{{name}:,}}: must be at most {rule.le:,}")
        for record, names in ((Decoder, Decoder.numeric()), (RunConfig, OF_RUN))
        for name in names
        for rule in record.model_fields[name].metadata
        if hasattr(rule, "le") and rule.le < graph.EXACT_BELOW
    ]


@dataclass(eq=False, slots=True)
class _Value:
    """A quantity, its components, where it is known, and the number of its budget."""

    whole: Any
    parts: Terms
    holds: Any
    budget: int | None = None


class _Formulas:
    """The nodes of all groups of models; equal expressions are one node.

    `fields` has the fields that a component depends on, by the node of one instance. `budgets` has
    the total of a quantity with its components, and its index.
    """

    def __init__(self, examples: Mapping[Categories, tuple[Architecture, ...]]):
        self.programs = Programs(examples)
        self.graph = graph.Graph()
        self.columns = RunColumns()
        self.fields: dict[int, list[str]] = {}
        self.budgets: dict[tuple, int] = {}
        self.once = OnceForReadSettings()

    def form(self, categories: dict[str, str], classes: list[str], peaks: bool) -> dict:
        """Return the nodes of the decoders with these categorical fields.

        `classes`: those of transformers whose run settings are known, which have peaks as well.
        """
        a = graph.namespace(Decoder, categories)
        vars(a).update(ABSENT)
        self.once = OnceForReadSettings()  # of these fields
        all_of, active = Decoder.parameters(a), Decoder.active_parameters(a)
        found = {
            "categories": categories,
            "components": {name: self._product(term) for name, term in all_of.items()},
            "total": self.graph.node(total(all_of)),
            "active": self.graph.node(total(active)),
            "conventions": [
                self.graph.node(total(one.terms(Decoder, a, graph.field("length"))))
                for one in CONVENTIONS
            ],
            "others": self._others(a),
            "runs": self.columns.of(
                self._runs(a, _runs(categories, peaks), [*PARTS, *(PEAKS if peaks else ())])
            ),
            "classes": {
                name: self.columns.of(
                    self._runs(
                        a,
                        _runs(categories),
                        [OF_CLASSES],
                        implementations()[TRANSFORMERS].of_class(name),
                    )
                )
                for name in classes
            },
        }
        for name, term in (*all_of.items(), *active.items()):
            self._note(found["components"][name][0], term)
        return found

    def _others(self, a) -> list[tuple[str, str, int, int]]:
        """Return quantity, word, the node of its bytes, and that of whether these are known."""
        found = []
        for quantity, (name, words) in OTHERS.items():
            for word in words:
                r = SimpleNamespace(**vars(RunConfig(**{"dtype": HALF[0], name: word})))  # pyright: ignore[reportCallIssue, reportArgumentType]
                is_format = name == "weights"
                holds = self.graph.node(
                    Decoder.stores_all(a, r)
                    if is_format
                    else Decoder.has_formula_for(quantity, a, r)
                )
                if self.graph.constant(holds) != 0:
                    terms = getattr(Decoder, quantity)(a, r)
                    found.append((quantity, word, self.graph.node(total(terms)), holds))
        return found

    def _runs(
        self, a, runs: list[Settings], quantities: list[str], of_class: Mapping[str, Any] = {}
    ) -> dict[str, dict]:
        """Return the quantities of each run; dtypes of the same size have the same formulas."""
        by_size: dict[tuple, dict] = {}
        found = {}
        for choices in runs:
            same = tuple((choices | {"dtype": BYTES[choices["dtype"]]}).values())
            if same not in by_size:
                by_size[same] = self._run(a, choices, quantities, of_class)
            found[" ".join(map(str, choices.values()))] = by_size[same]
        return found

    def _run(
        self, record, choices: Settings, quantities: list[str], of_class: Mapping[str, Any]
    ) -> dict[str, list]:
        """Return for each quantity its budget, and the node of whether its formula holds.

        Quantities whose formula never holds are left out, and those of inference if the run is not
        of one device.
        """
        is_alone = choices | _alone() == choices
        same = tuple(choices.items()), tuple(of_class.items())
        training = _run_of(*same, divided=True)
        if training is not None:
            training = training._replace(settings=_with_foreach(record, training.settings))
        inference = _run_of(*same, divided=False) if is_alone else None
        found, sums = {}, {}
        for quantity in quantities:
            run = inference if quantity in OF_INFERENCE else training
            if run is None:
                continue
            value = self._read(quantity, record, run.settings, sums)
            sums[quantity] = value.whole
            holds = self.graph.node(run.holds * value.holds)
            if self.graph.constant(holds) != 0:
                if value.budget is None:
                    value.budget = self._budget(value.whole, value.parts)
                found[quantity] = [value.budget, holds]
        if "optimizer_bytes" in found:
            states = sum(sums[f"{name}_bytes"] for name in ("parameter", "gradient", "optimizer"))
            found[STATES] = [self._budget(states, {}), found["optimizer_bytes"][1]]
        return found

    def _read(self, quantity: str, record, r, sums: Mapping[str, Any]) -> _Value:
        """Return a quantity, its components, and where it is known.

        The peak of inference: parameters, caches, and what its program has beyond. `sums`: of the
        quantities before.
        """
        if quantity == BY_PROGRAM:
            beyond, holds = self.programs.beyond(record, r)
            holds = holds * self._read("cache_bytes", record, r, sums).holds
            held = total(Decoder.parameter_bytes(record, r)) + sums["cache_bytes"]
            return _Value(held + beyond, {}, holds)
        return self.once(quantity, lambda r: self._closed(quantity, record, r), r)

    def _closed(self, quantity: str, record, r) -> _Value:
        """Return what `_read` does of a quantity with closed formulas, or of caches."""
        a, holds = self._with_formula(quantity, record, r)
        if self.graph.constant(self.graph.node(holds)) != 0:
            terms = getattr(Decoder, quantity)(a, r)
        else:
            terms, holds = self.programs.caches(a, r) if quantity == "cache_bytes" else ({}, 0)
        if quantity in PEAKS:
            peak = largest(*(term.total for term in terms.values())) if terms else 0
            return _Value(peak, {}, holds)
        return _Value(total(terms), terms, holds)

    def _with_formula(self, quantity: str, a, r) -> tuple[Any, Any]:
        """Return the fields, and where the formula holds: at least where no first layer is dense.

        Only models with experts can have dense first layers.
        """
        alike = SimpleNamespace(**vars(a) | {"n_dense_layer": 0})
        if a.mlps == "mlp":
            return alike, Decoder.has_formula_for(quantity, alike, r)
        holds = Decoder.has_formula_for(quantity, a, r)
        if self.graph.constant(self.graph.node(holds)) != 0:
            return a, holds
        without = 1 - positive(a.n_dense_layer)
        return alike, without * Decoder.has_formula_for(quantity, alike, r)

    def _budget(self, whole, terms: Terms) -> int:
        parts = ((name, self.graph.node(term.total)) for name, term in terms.items())
        zero = self.graph.node(0)
        budget = (self.graph.node(whole), *(part for part in parts if part[1] != zero))
        return self.budgets.setdefault(budget, len(self.budgets))

    def _note(self, node: int, term: Term) -> None:
        """Note the fields that one instance of a component and their number depend on."""
        names = self.graph.sizes(term.each) | self.graph.sizes(term.instances)
        self.fields[node] = sorted(names.union(self.fields.get(node, ())))

    def _product(self, term: Term) -> list[int]:
        """Return the nodes of one instance, of the number of instances, and of the product."""
        return [self.graph.node(value) for value in (*term, term.total)]


class _Run(NamedTuple):
    """A run with its sizes as fields, and the condition under which its settings are known."""

    settings: SimpleNamespace
    holds: Any = 1


@cache  # all groups of models have the same runs
def _run_of(chosen: tuple, of_class: tuple, divided: bool) -> _Run | None:
    """Return a run of these choices; None if its settings contradict each other.

    With `divided`, of any number of devices that compute one model together, if that is known with
    the settings of the class.
    """
    choices = dict(chosen)
    shared = {OF_SEVERAL[name] for name in ALONE if choices.get(name, ALONE[name]) != ALONE[name]}
    sizes = {"batch", "length", *shared, *(n for n in OF_RUN if OF_SEVERAL.get(n) in shared)}
    several = choices | _brought(choices) | dict(of_class) | dict.fromkeys(sizes, 2)
    together = {"tensor_parallel": 2, "sequence_parallel": True}
    if divided and (run := _known(several | together)):
        return _Run(_with_sizes(run, sizes.union(together)))
    if run := _known(several):
        is_whole = 1 - positive(graph.field("tensor_parallel") - 1)
        return _Run(_with_sizes(run, sizes), is_whole if divided else 1)
    return None


def _with_foreach(record, r: SimpleNamespace) -> SimpleNamespace:
    """Return a run whose AdamW updates all tensors at once where that is the default of a GPU."""

    def on(devices: int, in_sequence: bool) -> int:
        shared = {"tensor_parallel": devices, "sequence_parallel": in_sequence}
        default = device_defaults(Decoder)["foreach"]  # pyright: ignore[reportArgumentType]
        return int(default(vars(record) | vars(r) | shared))

    whole, divided = on(1, False), on(2, False)
    of_several = divided + r.sequence_parallel * (on(2, True) - divided)
    foreach = whole + positive(r.tensor_parallel - 1) * (of_several - whole)
    return SimpleNamespace(**vars(r) | {"foreach": foreach})


def _alone() -> Settings:
    """Return the choices of a model that one device computes."""
    return {name: value for name, value in ALONE.items() if name in CHOICES_OF_RUN}


def _known(settings: Settings) -> RunConfig | None:
    try:
        return RunConfig.model_validate(settings)
    except ValidationError:
        return None


def _with_sizes(run: RunConfig, sizes: Iterable[str]) -> SimpleNamespace:
    return SimpleNamespace(**vars(run) | {name: graph.field(name) for name in sizes})


def _brought(choices: Settings) -> Settings:
    """Return the settings that choices bring with them."""
    found = (values.get(choices[name], {}) for name, values in BROUGHT.items())
    return {name: value for settings in found for name, value in settings.items()}


def _runs(categories: Mapping[str, str], published: bool = False) -> list[Settings]:
    """Return the combinations of the choices of a run: for `published` models, all of the page's.

    Others have no stages. Beside math there is flash, or in float32 efficient; of MLA both.
    """
    has_mla = "mla" in categories["mixers"].split()
    dtypes, kernels, recompute, zeros, *of_stages = (
        all_of for _, all_of in CHOICES_OF_RUN.values()
    )
    _, *whole = _alone().values()
    stages = [tuple(whole), *(itertools.product(*of_stages) if published else ())]
    return [
        dict(zip(CHOICES_OF_RUN, (dtype, kernel, again, zero, *stage), strict=True))
        for dtype, kernel, again, zero, stage in itertools.product(
            dtypes, kernels, recompute, zeros if published else ZERO_OF_OTHERS, stages
        )
        if kernel in ("math", "flash" if dtype in HALF else "efficient", "efficient" * has_mla)
        if stage == stages[0] or zero in ZERO_OF_STAGES
    ]


def _is_compared(kind: str) -> bool:
    """Whether the training peak of a class, with its defaults, is that of a closed formula."""
    run = RunConfig.model_validate(implementations()[TRANSFORMERS].of_class(kind))
    a = default_decoders()[kind]
    has_formula = a.has_formula_for(OF_CLASSES, a, run)
    return bool(has_formula) and not not_compared(OF_CLASSES, kind, {}, a, run)


def calculator_section(catalogue: Catalogue) -> dict:
    """Return the controls for the template, and `data` for the script."""
    named = {
        base.name: (base, named_architecture(base))
        for base in catalogue.bases.values()
        if base.model is not None and base.family is Decoder
    }
    of_classes = default_decoders()
    known = [name for name in implementations()[TRANSFORMERS].classes if _is_compared(name)]
    own = _categories([*(a for _, a in named.values()), *(of_classes[name] for name in known)])
    exchanged = _exchanged(_categories(a for _, a in named.values()))
    all_of = (*own, *exchanged, *_categories(of_classes.values()))
    categories: dict[Categories, set[str]] = {values: set() for values in all_of}
    for name in known:
        categories[_categories([of_classes[name]])[0]].add(name)
    fields = {name: _field(Decoder, name) for name in Decoder.numeric()}
    of_run = {name: _field(RunConfig, name) for name in OF_RUN}
    choices = list(dict.fromkeys(dict(values)[EXCHANGEABLE] for values in exchanged))
    devices = [(accelerator.name, accelerator.bytes) for accelerator in accelerators(ACCELERATORS)]
    return {
        "models": len(named),
        "main": [fields[name] for name in MAIN],
        "run": _controls_of_run(of_run),
        "others": [field for name, field in fields.items() if name not in MAIN],
        "exchangeable": {"name": EXCHANGEABLE, "choices": choices},
        "quantities": {"parameters": "parameters"}
        | {name: title for name, title in QUANTITIES.items() if name != STATES},
        "conventions": [
            (unit, [one.name for one in CONVENTIONS if one.unit == unit])
            for unit in (PARAMETERS, FLOPS)
        ],
        "series": _by_series([base for base, _ in named.values()]),
        "devices": devices,
        "data": {
            "start": START,
            "start_length": START_LENGTH,
            "run": {name: all_of[0] for name, (_, all_of) in CHOICES_OF_RUN.items()},
            "choices": [(name, choices) for name, (_, choices) in CHOICES_OF_RUN.items()],
            "quantities": list((QUANTITIES | PEAKS).items()),
            "conventions": [(one.name, one.unit, one.rule) for one in CONVENTIONS],
            "kinds": {name: base.transformers for name, (base, _) in named.items()},
            "devices": devices,
            "margins": [memory_margins().reserve.bytes, memory_margins().worst_ratio.value],
            "minimum": {name: field["minimum"] for name, field in (fields | of_run).items()},
            "constants": _constants(),
            "of_run": OF_RUN,
            "meshes": list(dict.fromkeys(OF_SEVERAL.values())),
            "of_several": [
                (name, OF_SEVERAL[name], _plain(alone)) for name, alone in ALONE.items()
            ],
            "brought": BROUGHT,
            "of_inference": OF_INFERENCE,
            "half": HALF,
            "switches": [name for name, field in (fields | of_run).items() if field["switch"]],
            "defaults": _defaults(),
            "exchangeable": {choice: _experts_of(choice) for choice in choices},
            "models": {name: _numbers(base, a) for name, (base, a) in named.items()},
            "rules": rules(),
            "memory": {group: variable_of_group(group) for group in MEMORY},
            "kernels": kernels(),
            "order": [(group, variable_of_group(group)) for group in ORDER],
            **_formulas(
                tuple((values, tuple(sorted(classes))) for values, classes in categories.items()),
                tuple(own),
                _examples([*(a for _, a in named.values()), *(of_classes[name] for name in known)]),
            ),
            "config": translation_data(),
        },
    }


@cache  # takes seconds, and depends on no model's sizes and names
def _formulas(
    categories: tuple[tuple[Categories, tuple[str, ...]], ...],
    own: tuple[Categories, ...],
    examples: tuple[tuple[Categories, tuple[Architecture, ...]], ...],
) -> dict:
    """Return the nodes for the script, and how components and budgets are made of them.

    `categories` has the classes with known run settings. Only models with categories in `own` have
    peaks. `examples`: the models that have peaks, by their categories.
    """
    found = _Formulas(dict(examples))
    forms = [
        found.form(dict(values), list(classes), values in own) for values, classes in categories
    ]
    names = [name for form in forms for name in form["components"]]
    names += [name for _, *parts in found.budgets for name, _ in parts]
    components = sorted(dict.fromkeys(names), key=sort_key)
    return {
        "forms": forms,
        "graph": found.graph.data(),
        "budgets": as_steps(found.budgets),
        "runs": list(map(list, found.columns.runs)),
        "fields": found.fields,
        "groups": [(name, variable_of_group(group_of(name))) for name in components],
    }


def _constants() -> dict[str, int | str]:
    """Return the run settings that a reader cannot change; switches as 1 or 0."""
    defaults = {
        name: field.default
        for name, field in RunConfig.model_fields.items()
        if name not in (*OF_RUN, *CHOICES_OF_RUN)
    }
    return {name: _plain(value) for name, value in defaults.items()}


def _plain(value):
    """Return a value as the script has it: a switch as 1 or 0."""
    return int(value) if isinstance(value, bool) else value


def _controls_of_run(sizes: dict[str, dict]) -> list[dict]:
    """Return sizes and choices of a run, those of devices last, each after their number."""
    choices = {
        name: {"name": name, "description": description, "choices": choices}
        for name, (description, choices) in CHOICES_OF_RUN.items()
    }
    by_name = sizes | choices
    numbers = dict.fromkeys(OF_SEVERAL.values())
    of_devices = [
        name
        for number in numbers
        for name in (number, *OF_SEVERAL)
        if OF_SEVERAL.get(name, name) == number
    ]
    others = (name for name in by_name if name not in of_devices)
    return [by_name[name] for name in (*others, *of_devices)]


def _examples(
    architectures: list[Architecture],
) -> tuple[tuple[Categories, tuple[Architecture, ...]], ...]:
    """Return the models with each choice of categorical fields."""
    by_categories: dict[Categories, list[Architecture]] = {}
    for a in architectures:
        by_categories.setdefault(_categories([a])[0], []).append(a)
    return tuple((values, tuple(models)) for values, models in by_categories.items())


def _categories(architectures: Iterable[Architecture]) -> list[Categories]:
    """Return the categorical fields of all architectures, each once."""
    found = (tuple((n, getattr(a, n)) for n in Decoder.categorical()) for a in architectures)
    return list(dict.fromkeys(found))


def _exchanged(categories: list[Categories]) -> list[Categories]:
    """Return the categorical fields with every choice of EXCHANGEABLE."""
    choices = dict.fromkeys(dict(values)[EXCHANGEABLE] for values in categories)
    both = itertools.product(categories, choices)
    return [tuple((dict(values) | {EXCHANGEABLE: c}).items()) for values, c in both]


def _field(record, name: str) -> dict:
    info = record.model_fields[name]
    of_run = DESCRIPTIONS.get(name, info.description or "")
    title = field_title(name) if record is Decoder else of_run
    return {
        "name": name,
        "description": re.sub(f"^{name}(: )?", "", title),
        "switch": info.annotation is bool,
        "minimum": next((rule.ge for rule in info.metadata if hasattr(rule, "ge")), 0),
    }


def _by_series(bases: list[Base]) -> dict[str, list[tuple[str, str]]]:
    """Return names and labels of models by the title of their series."""
    found: dict[str, list[tuple[str, str]]] = {}
    titled = [(base.series or "", base) for base in bases]
    for series, base in sorted(titled, key=lambda one: one[0].lower()):
        found.setdefault(series, []).append((base.name, base.label))
    return found


def _experts_of(choice: str) -> dict:
    """Return the fields to set with a choice of EXCHANGEABLE; a name means that field's value."""
    return NEW_EXPERTS if "moe" in choice.split() else dict.fromkeys(NEW_EXPERTS, 0)


def _defaults() -> dict:
    fields = Decoder.model_fields | {name: RunConfig.model_fields[name] for name in OF_RUN}
    return {name: info.default for name, info in fields.items() if not info.is_required()}


def _numbers(base: Base, a: Architecture) -> dict:
    """Return a model's label, its fields that differ from the defaults, and those that follow.

    The sequence length is the default one, or n_ctx if that is smaller.
    """
    defaults = _defaults()
    own = a.model_dump()
    of_both = own | {"length": min(own["n_ctx"], defaults["length"])}
    fields = {k: v for k, v in of_both.items() if k not in defaults or v != defaults[k]}
    return {"label": base.label, "fields": fields, "follow": _followers(base)}


def _followers(base: Base) -> list[tuple[str, str, list[str]]]:
    """Return the fields of a model that follow others, in the order of their evaluation."""
    _, rules = settled(base, {}, {})
    return [
        follower(name, rule)
        for name, rule in rules.items()
        if isinstance(rule, Expression) and name in Decoder.numeric()
    ]
