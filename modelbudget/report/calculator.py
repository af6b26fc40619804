"""The calculator of the page: every decoder of the catalogue, with fields that a reader can change.

The page has no formulas of its own. Fields are signals of a Vega dataflow, whose derived signals
are the formulas as Vega expressions. Vega's interpreter evaluates them without eval.
"""

import itertools
import re

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.readings import vega, vega_constraints
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_step import HALF
from modelbudget.architecture.run_values import BYTES, ONE_DEVICE
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.catalogue.models import Base, Catalogue
from modelbudget.components.groups import ORDER, group_of
from modelbudget.families.decoder import Decoder
from modelbudget.report.charts.format import field_title
from modelbudget.report.component_order import sort_key
from modelbudget.report.specs import variable_of_group
from modelbudget.sweep.derive import named_architecture

START = "palm-540b"
MAIN = (
    "n_vocab", "n_ctx", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff", "n_expert",
    "n_expert_per_token", "d_expert", "gated", "tied", "head_bias",
)  # fmt: skip
"""Fields at the top of the table; the others are below, in a closed part."""
OF_RUN = ("batch", "length")
CHOICES_OF_RUN = {
    "dtype": ("of parameters, activations and cache", ("float32", *HALF)),
    "attention_kernel": ("scores in memory (math) or not (flash)", ("math", "flash")),
}
"""Categorical run settings with a description and their choices in the page.

With the sizes in OF_RUN these are the run settings that a reader can change; all others have their
defaults.
"""
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
EXCHANGEABLE = "mlps"
"""The categorical field that a reader can change: dense MLPs or experts."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""Experts of a model that had none: those of Mixtral, each as wide as the MLP was."""


def rules() -> list[dict]:
    """Return every constraint of a decoder and its run, as `mistake` and `fields`.

    `mistake` is a Vega expression whose value is the message, or empty if the constraint holds;
    `fields` are the fields that it reads.
    """
    switches = [
        name
        for kind in (Decoder, RunConfig)
        for name, field in kind.model_fields.items()
        if field.annotation is bool
    ]
    # A class is hashable even where its instances seem not to be.
    checks = [*Decoder.all_constraints(), *RunConfig.all_constraints(), *run_constraints(Decoder)]  # pyright: ignore[reportArgumentType]
    # Checks that are not expressions are about layers without mixer and MLP; no model here has any.
    constraints = [check for check in checks if isinstance(check, Constraint)]
    return [
        {"mistake": vega_constraints.mistake(one, switches), "fields": sorted(one.names)}
        for one in [*_upper_bounds(), *constraints]
    ]


def _upper_bounds() -> list[Constraint]:
    """Return the upper bounds of fields below the limit of exact numbers in a browser."""
    return [
        Constraint(f"{name} <= {rule.le}", f"{name} = {{{name}:,}}: must be at most {rule.le:,}")
        for name in Decoder.numeric()
        for rule in Decoder.model_fields[name].metadata
        if hasattr(rule, "le") and rule.le < vega.EXACT_BELOW
    ]


class _Dataflow(vega.Dataflow):
    """The signals of all groups of models; equal expressions are one signal.

    `fields` has the fields that a component depends on, by the signal of one instance. `budgets`
    has the total of a quantity with its components, and its index.
    """

    def __init__(self):
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.budgets: dict[tuple, int] = {}

    def form(self, categories: dict[str, str]) -> dict:
        """Return the signals of the decoders with these categorical fields."""
        a = vega.namespace(Decoder, categories)
        all_of, active = Decoder.parameters(a), Decoder.active_parameters(a)
        found = {
            "categories": categories,
            "components": {name: self._product(term) for name, term in all_of.items()},
            "total": self.signal(total(all_of)),
            "active": self.signal(total(active)),
            "runs": self._runs(a),
        }
        for name, term in (*all_of.items(), *active.items()):
            self._note(found["components"][name][0], term)
        return found

    def _runs(self, a) -> dict[str, dict]:
        """Return the quantities of each run; dtypes of the same size have the same formulas."""
        by_size: dict[tuple, dict] = {}
        for dtype, attention in _runs():
            if (BYTES[dtype], attention) not in by_size:
                by_size[BYTES[dtype], attention] = self._run(a, (dtype, attention))
        return {f"{dtype} {kernel}": by_size[BYTES[dtype], kernel] for dtype, kernel in _runs()}

    def _run(self, a, choices: tuple[str, ...]) -> dict[str, list]:
        """Return for each quantity its budget, and the signal of whether its formula holds.

        Quantities whose formula never holds are left out.
        """
        settings = {name: RunConfig.model_fields[name].default for name in RunConfig.categorical()}
        settings |= zip(CHOICES_OF_RUN, choices, strict=True)
        r = vega.namespace(RunConfig, settings)
        vars(r).update(ONE_DEVICE)
        found, sums = {}, {}
        for quantity in [name for name in QUANTITIES if name != STATES]:
            holds = Decoder.has_formula_for(quantity, a, r)
            if self.text(holds) != "0":
                terms = getattr(Decoder, quantity)(a, r)
                sums[quantity] = total(terms)
                found[quantity] = [self._budget(sums[quantity], terms), self.signal(holds)]
        if "optimizer_bytes" in found:
            states = sum(sums[f"{name}_bytes"] for name in ("parameter", "gradient", "optimizer"))
            found[STATES] = [self._budget(states, {}), found["optimizer_bytes"][1]]
        return found

    def _budget(self, whole, terms: Terms) -> int:
        parts = ((name, self.signal(term.total)) for name, term in terms.items())
        budget = (self.signal(whole), *(part for part in parts if part[1] != self.signal(0)))
        return self.budgets.setdefault(budget, len(self.budgets))

    def _note(self, signal: str, term: Term) -> None:
        """Note the fields that one instance of a component and their number depend on."""
        names = self.sizes(term.each) | self.sizes(term.instances)
        self.fields[signal] = sorted(names.union(self.fields.get(signal, ())))

    def _product(self, term: Term) -> list[str]:
        """Return the signals of one instance, of the number of instances, and of the product."""
        return [self.signal(value) for value in (*term, term.total)]


def _runs() -> list[tuple[str, ...]]:
    """Return all valid combinations of dtype and attention kernel."""
    runs = itertools.product(*(choices for _, choices in CHOICES_OF_RUN.values()))
    return [(dtype, kernel) for dtype, kernel in runs if kernel == "math" or dtype in HALF]


def calculator_section(catalogue: Catalogue) -> dict:
    """Return the controls for the template, and `data` for the script."""
    named = {
        base.name: (base, named_architecture(base))
        for base in catalogue.bases.values()
        if base.model is not None and base.family is Decoder
    }
    categories = _categories([architecture for _, architecture in named.values()])
    fields = {name: _field(Decoder, name) for name in Decoder.numeric()}
    of_run = {name: _field(RunConfig, name) for name in OF_RUN}
    choices = list(dict.fromkeys(values[EXCHANGEABLE] for values in categories))
    return {
        "models": len(named),
        "main": [fields[name] for name in MAIN],
        "run": list(of_run.values()),
        "others": [field for name, field in fields.items() if name not in MAIN],
        "exchangeable": {"name": EXCHANGEABLE, "choices": choices},
        "choices_of_run": [
            {"name": name, "description": description, "choices": choices}
            for name, (description, choices) in CHOICES_OF_RUN.items()
        ],
        "quantities": {"parameters": "parameters"}
        | {name: title for name, title in QUANTITIES.items() if name != STATES},
        "series": _by_series([base for base, _ in named.values()]),
        "data": {
            "start": START,
            "run": {name: RunConfig.model_fields[name].default for name in CHOICES_OF_RUN},
            "choices": [(name, choices) for name, (_, choices) in CHOICES_OF_RUN.items()],
            "quantities": list(QUANTITIES.items()),
            "minimum": {name: field["minimum"] for name, field in (fields | of_run).items()},
            "constants": _constants(),
            "switches": [name for name, field in fields.items() if field["switch"]],
            "defaults": _defaults(),
            "exchangeable": {choice: _experts_of(choice) for choice in choices},
            "models": {name: _numbers(base, a) for name, (base, a) in named.items()},
            "rules": rules(),
            "order": [(group, variable_of_group(group)) for group in ORDER],
            **_formulas(categories),
        },
    }


def _formulas(categories: list[dict[str, str]]) -> dict:
    """Return the expressions of the script, and how components and budgets are made of them."""
    dataflow = _Dataflow()
    forms = [dataflow.form(values) for values in categories]
    names = [name for form in forms for name in form["components"]]
    names += [name for _, *parts in dataflow.budgets for name, _ in parts]
    components = sorted(dict.fromkeys(names), key=sort_key)
    return {
        "forms": forms,
        "expressions": list(dataflow.expressions),
        "budgets": list(dataflow.budgets),
        "fields": dataflow.fields,
        "groups": [(name, variable_of_group(group_of(name))) for name in components],
    }


def _constants() -> dict[str, int | str]:
    """Return the run settings that a reader cannot change; switches as 1 or 0."""
    defaults = {
        name: field.default
        for name, field in RunConfig.model_fields.items()
        if name not in (*OF_RUN, *CHOICES_OF_RUN)
    }
    return {name: int(v) if isinstance(v, bool) else v for name, v in defaults.items()}


def _categories(architectures: list[Architecture]) -> list[dict[str, str]]:
    """Return the categorical fields of all architectures, with every choice of EXCHANGEABLE."""
    found = [{name: getattr(a, name) for name in Decoder.categorical()} for a in architectures]
    choices = dict.fromkeys(values[EXCHANGEABLE] for values in found)
    both = [values | {EXCHANGEABLE: c} for values, c in itertools.product(found, choices)]
    return [dict(items) for items in dict.fromkeys(tuple(values.items()) for values in both)]


def _field(record, name: str) -> dict:
    info = record.model_fields[name]
    title = field_title(name) if record is Decoder else info.description
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
    """Return a model's label, and its fields that differ from the defaults.

    The sequence length is the default one, or n_ctx if that is smaller.
    """
    defaults = _defaults()
    own = a.model_dump()
    of_both = own | {"length": min(own["n_ctx"], defaults["length"])}
    fields = {k: v for k, v in of_both.items() if k not in defaults or v != defaults[k]}
    return {"label": base.label, "fields": fields}
