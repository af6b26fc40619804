"""What if: every decoder of the catalogue, with its numbers free to move in the page.

The page computes nothing of its own. It hands sizes to one Vega dataflow, whose derived signals
are the formulas in their Vega reading; Vega's interpreter evaluates them, without eval.
"""

import itertools
import re

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.component_groups import ORDER, group_of
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.readings import vega, vega_constraints
from modelbudget.architecture.run_config import BYTES, HALF, RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.catalogue.models import Base, Catalogue
from modelbudget.families.decoder import Decoder
from modelbudget.report.charts.format import field_title
from modelbudget.report.component_order import flow
from modelbudget.report.specs import variable_of_group
from modelbudget.sweep.derive import named_architecture

START = "palm-540b"
MAIN = (
    "n_vocab", "n_ctx", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff", "n_expert",
    "n_expert_per_token", "d_expert", "gated", "tied", "head_bias",
)  # fmt: skip
"""The numbers that people ask about first; the others stand below them."""
OF_RUN = ("batch", "length")
WORDS_OF_RUN = {
    "dtype": ("of parameters, activations and cache", ("float32", *HALF)),
    "attention_kernel": ("scores written out in memory, or never", ("math", "flash")),
}
"""What a reader sets of the run: sizes, and words of which the page has these. The rest is as a
run has it by itself.
"""
STATES = "states"
QUANTITIES = {
    "parameter_bytes": "bytes of parameters",
    "gradient_bytes": "bytes of gradients",
    "optimizer_bytes": "bytes of AdamW’s states",
    STATES: "bytes of these three",
    "activation_bytes": "bytes kept for backward",
    "flops_forward": "FLOPs forward",
    "flops_backward": "FLOPs backward",
    "cache_bytes": "bytes of the cache",
}
FREE = "mlps"
"""The word that can be exchanged: a plain MLP for experts, and back."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""What a model starts with that had none: Mixtral's experts, each as wide as the MLP was."""


def rules() -> list[dict]:
    """Every constraint of a decoder and its run: the Vega expression of what is wrong with the
    signals, empty where nothing is, and the fields that it reads.
    """
    switches = [
        name
        for kind in (Decoder, RunConfig)
        for name, field in kind.model_fields.items()
        if field.annotation is bool
    ]
    checks = [*Decoder.all_constraints(), *RunConfig.all_constraints(), *run_constraints(Decoder)]
    # A check that is no expression is about layers without mixer and MLP, which no model here has.
    constraints = [check for check in checks if isinstance(check, Constraint)]
    return [
        {"mistake": vega_constraints.mistake(one, switches), "fields": sorted(one.names)}
        for one in [*_upper_bounds(), *constraints]
    ]


def _upper_bounds() -> list[Constraint]:
    """Those of sizes that are smaller than what a browser computes exactly."""
    return [
        Constraint(f"{name} <= {rule.le}", f"{name} = {{{name}:,}}: must be at most {rule.le:,}")
        for name in Decoder.numeric()
        for rule in Decoder.model_fields[name].metadata
        if hasattr(rule, "le") and rule.le < vega.EXACT_BELOW
    ]


class _Dataflow(vega.Dataflow):
    """What all kinds of model compute; what is alike in two of them is computed once.

    `fields` holds the fields that a component depends on, by the signal of its one instance;
    `budgets` a quantity's sum and its parts.
    """

    def __init__(self):
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.budgets: dict[tuple, int] = {}

    def kind(self, words: dict[str, str]) -> dict:
        """Signals of the decoders with these words: components, and their sums."""
        a = vega.namespace(Decoder, words)
        all_of, active = Decoder.parameters(a), Decoder.active_parameters(a)
        found = {
            "words": words,
            "components": {name: self._product(term) for name, term in all_of.items()},
            "total": self.signal(total(all_of)),
            "active": self.signal(total(active)),
            "runs": self._runs(a),
        }
        for name, term in (*all_of.items(), *active.items()):
            self._note(found["components"][name][0], term)
        return found

    def _runs(self, a) -> dict[str, dict]:
        """By the words of each run; elements of as many bytes are alike in every formula."""
        of_bytes: dict[tuple, dict] = {}
        for dtype, attention in _runs():
            alike = BYTES[dtype], attention
            if alike not in of_bytes:
                of_bytes[alike] = self._run(a, (dtype, attention))
        return {" ".join(words): of_bytes[BYTES[words[0]], words[1]] for words in _runs()}

    def _run(self, a, words_of_run: tuple[str, ...]) -> dict[str, list]:
        """For each quantity of a run its budget, and the signal of whether a formula holds; those
        that never hold are left out.
        """
        words = {name: RunConfig.model_fields[name].default for name in RunConfig.categorical()}
        words |= zip(WORDS_OF_RUN, words_of_run, strict=True)
        r = vega.namespace(RunConfig, words)
        found, sums = {}, {}
        for quantity in [name for name in QUANTITIES if name != STATES]:
            holds = quantity == "parameter_bytes" or Decoder.has_formula_for(quantity, a, r)
            if self.text(holds) != "0":
                terms = getattr(Decoder, quantity)(a, r)
                sums[quantity] = total(terms)
                found[quantity] = [self._budget(sums[quantity], terms), self.signal(holds)]
        if "gradient_bytes" in found:
            states = sum(sums[f"{name}_bytes"] for name in ("parameter", "gradient", "optimizer"))
            found[STATES] = [self._budget(states, {}), found["gradient_bytes"][1]]
        return found

    def _budget(self, whole, terms: Terms) -> int:
        parts = ((name, self.signal(term.total)) for name, term in terms.items())
        budget = (self.signal(whole), *(part for part in parts if part[1] != self.signal(0)))
        return self.budgets.setdefault(budget, len(self.budgets))

    def _note(self, signal: str, term: Term) -> None:
        """The fields of a component: of one instance, and of their number."""
        names = self.sizes(term.each) | self.sizes(term.instances)
        self.fields[signal] = sorted(names.union(self.fields.get(signal, ())))

    def _product(self, term: Term) -> list[str]:
        """Signals of one instance, of the number of instances, and of both multiplied."""
        return [self.signal(value) for value in (*term, term.total)]


def _runs() -> list[tuple[str, ...]]:
    """The words of all runs that there can be."""
    choices = itertools.product(*(choices for _, choices in WORDS_OF_RUN.values()))
    return [words for words in choices if words[1] == "math" or words[0] in HALF]


def explorer_section(catalogue: Catalogue) -> dict:
    """What the template shows as controls, and `data` for the script behind them."""
    named = {
        base.name: (base, named_architecture(base))
        for base in catalogue.bases.values()
        if base.model is not None and base.family is Decoder
    }
    kinds = _kinds([architecture for _, architecture in named.values()])
    dataflow = _Dataflow()
    forms = [dataflow.kind(words) for words in kinds]
    named_parts = [name for form in forms for name in form["components"]]
    named_parts += [name for _, *parts in dataflow.budgets for name, _ in parts]
    components = sorted(dict.fromkeys(named_parts), key=flow)
    fields = {name: _field(Decoder, name) for name in Decoder.numeric()}
    of_run = {name: _field(RunConfig, name) for name in OF_RUN}
    choices = list(dict.fromkeys(kind[FREE] for kind in kinds))
    return {
        "models": len(named),
        "main": [fields[name] for name in MAIN],
        "run": list(of_run.values()),
        "others": [field for name, field in fields.items() if name not in MAIN],
        "word": {"name": FREE, "choices": choices},
        "words_of_run": [
            {"name": name, "says": says, "choices": choices}
            for name, (says, choices) in WORDS_OF_RUN.items()
        ],
        "quantities": {"parameters": "parameters"}
        | {name: words for name, words in QUANTITIES.items() if name != STATES},
        "series": _by_series([base for base, _ in named.values()]),
        "data": {
            "start": START,
            "run": {name: RunConfig.model_fields[name].default for name in WORDS_OF_RUN},
            "choices": [(name, choices) for name, (_, choices) in WORDS_OF_RUN.items()],
            "quantities": list(QUANTITIES.items()),
            "least": {name: field["least"] for name, field in (fields | of_run).items()},
            "still": _still(),
            "switches": [name for name, field in fields.items() if field["switch"]],
            "defaults": _defaults(),
            "free": {choice: _experts_of(choice) for choice in choices},
            "models": {name: _numbers(base, a) for name, (base, a) in named.items()},
            "forms": forms,
            "expressions": list(dataflow.expressions),
            "budgets": list(dataflow.budgets),
            "fields": dataflow.fields,
            "rules": rules(),
            "groups": [(name, variable_of_group(group_of(name))) for name in components],
            "order": [(group, variable_of_group(group)) for group in ORDER],
        },
    }


def _still() -> dict[str, int | str]:
    """The fields of a run that the page does not set; a switch as 1 or 0."""
    defaults = {
        name: field.default
        for name, field in RunConfig.model_fields.items()
        if name not in (*OF_RUN, *WORDS_OF_RUN)
    }
    return {name: int(v) if isinstance(v, bool) else v for name, v in defaults.items()}


def _kinds(architectures: list[Decoder]) -> list[dict[str, str]]:
    """The words of all architectures, with every choice of the free one."""
    found = [{name: getattr(a, name) for name in Decoder.categorical()} for a in architectures]
    free = dict.fromkeys(words[FREE] for words in found)
    both = [words | {FREE: choice} for words, choice in itertools.product(found, free)]
    return [dict(items) for items in dict.fromkeys(tuple(words.items()) for words in both)]


def _field(record, name: str) -> dict:
    info = record.model_fields[name]
    title = field_title(name) if record is Decoder else info.description
    words = re.sub(f"^{name}(: )?", "", title)
    return {
        "name": name,
        "words": words,
        "switch": info.annotation is bool,
        "least": next((rule.ge for rule in info.metadata if hasattr(rule, "ge")), 0),
    }


def _by_series(bases: list[Base]) -> dict[str, list[tuple[str, str]]]:
    """Names and labels of models, under the title of their series."""
    found: dict[str, list[tuple[str, str]]] = {}
    for base in sorted(bases, key=lambda base: base.series.lower()):
        found.setdefault(base.series, []).append((base.name, base.label))
    return found


def _experts_of(choice: str) -> dict:
    """What the free word needs beside it; a name stands for that field's value."""
    return NEW_EXPERTS if "moe" in choice.split() else dict.fromkeys(NEW_EXPERTS, 0)


def _defaults() -> dict:
    fields = Decoder.model_fields | {name: RunConfig.model_fields[name] for name in OF_RUN}
    return {name: info.default for name, info in fields.items() if not info.is_required()}


def _numbers(base: Base, a: Architecture) -> dict:
    """A model's label, and its fields as far as they are not the defaults; its sequences are as
    long as it allows.
    """
    defaults = _defaults()
    of_both = a.model_dump() | {"length": min(a.n_ctx, defaults["length"])}
    fields = {k: v for k, v in of_both.items() if k not in defaults or v != defaults[k]}
    return {"label": base.label, "fields": fields}
