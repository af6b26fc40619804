"""What if: every decoder of the catalogue, with its numbers free to move in the page.

The page computes nothing of its own. It hands sizes to one Vega dataflow, whose derived signals
are the formulas in their Vega reading; Vega's interpreter evaluates them, without eval.
"""

import itertools
import re
from typing import NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.component_groups import ORDER, group_of
from modelbudget.architecture.readings import vega
from modelbudget.architecture.run_config import (
    BYTES,
    FLASH_MULTIPLE,
    FLASH_WIDEST,
    HALF,
    MASKS,
    RunConfig,
)
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.catalogue.models import Base, Catalogue
from modelbudget.families.decoder import NEEDS, Decoder
from modelbudget.report.charts.format import field_title
from modelbudget.report.component_order import flow
from modelbudget.report.specs import variable_of_group
from modelbudget.sweep.expand import named_architecture

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
ATTENTION = "indexof(mixers, 'attention') >= 0 || indexof(mixers, 'local') >= 0"
"""Whether there is any, of all tokens or of those in a window."""
FREE = "mlps"
"""The word that can be exchanged: a plain MLP for experts, and back."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""What a model starts with that had none: Mixtral's experts, each as wide as the MLP was."""


class Rule(NamedTuple):
    """What a decoder may not be: true of its signals where it is refused, and the reason.

    The records' validators are the law; a test holds these against them, word by word.
    """

    broken: str
    reason: str


def rules() -> list[Rule]:
    """What a reader can bring about by moving sizes and switches of a catalogue's decoder."""
    plain = [
        Rule(
            "n_head % n_kv_head",
            "n_kv_head = {n_kv_head} does not divide n_head = {n_head}; "
            "each key–value head serves the same number of query heads",
        ),
        Rule(
            "qk_norm_bias && !(norm == 'layernorm' && norm_scale && qk_norm != 'none')",
            "qk_norm_bias = true needs norm: layernorm, norm_scale: true and a qk_norm; here "
            "norm: {norm}, norm_scale: {norm_scale}, qk_norm: {qk_norm}",
        ),
        Rule(
            "norm_bias && (norm == 'rmsnorm' || !norm_scale)",
            "norm_bias = true needs norm: layernorm and norm_scale: true; "
            "no published model shifts without them",
        ),
        Rule("d_rope % 2", "d_rope = {d_rope} is odd; rotary positions turn pairs"),
        Rule(
            "n_expert_per_token > n_expert",
            "n_expert_per_token = {n_expert_per_token} is more than n_expert = {n_expert}",
        ),
        Rule(
            "shared_gate && !d_shared",
            "shared_gate = true needs shared experts: d_shared of at least 1",
        ),
        Rule(
            "parallel && norm_placement != 'pre'",
            "norm_placement = '{norm_placement}': parallel: true allows 'pre' alone",
        ),
        Rule(
            "position_offset && position != 'learned'",
            "position_offset = {position_offset} needs position: learned; "
            "position: {position} has no rows",
        ),
        Rule(
            "d_rotary && (position != 'rotary' || d_rotary > d_head)",
            "d_rotary = {d_rotary} needs position: rotary and at most d_head = {d_head} channels; "
            "position: {position}",
        ),
        *(
            Rule(
                f"position == 'rotary' && {turned} && {name} % 2 && ({ATTENTION})",
                f"{name} = {{{name}}} is odd; position: rotary turns pairs of channels",
            )
            for name, turned in (("d_rotary", "d_rotary"), ("d_head", "!d_rotary"))
        ),
        Rule(
            "position == 'learned' && length > n_ctx",
            "length = {length:,}: position: learned has n_ctx = {n_ctx:,} places; "
            "allowed: at most {n_ctx:,}",
        ),
        Rule(
            "n_dense_layer > n_layer",
            "n_dense_layer = {n_dense_layer} is more than n_layer = {n_layer}",
        ),
    ]
    flash, only_math = "attention_kernel == 'flash' && ", "allowed: attention_kernel: math"
    of_flash = [
        Rule(
            f"{flash}indexof('{' '.join(HALF)}', dtype) < 0",
            f"dtype = {{dtype}}: a GPU's flash attention takes {' or '.join(HALF)}; "
            "allowed otherwise: attention_kernel: math",
        ),
        Rule(
            f"{flash}indexof('{' '.join(MASKS)}', position) >= 0",
            f"attention_kernel = 'flash': position: {{position}} adds to scores; {only_math}",
        ),
        Rule(
            f"{flash}window && window < length",
            "attention_kernel = 'flash': window = {window:,}, of length = {length:,}, hides "
            f"scores; {only_math}",
        ),
        Rule(
            f"{flash}sinks", f"attention_kernel = 'flash': sinks = true adds to scores; {only_math}"
        ),
        Rule(
            f"{flash}(d_head % {FLASH_MULTIPLE} || d_head > {FLASH_WIDEST})",
            f"attention_kernel = 'flash': d_head = {{d_head}}: a GPU's flash attention takes "
            f"multiples of {FLASH_MULTIPLE} up to {FLASH_WIDEST}; {only_math}",
        ),
    ]
    of_attention = [
        Rule(
            f"{name} && !({ATTENTION})",
            f"{name} = true needs attention in mixers, which are '{{mixers}}'",
        )
        for name in ("query_bias", "key_bias", "value_bias", "output_bias", "sinks")
    ]
    bounded = [
        Rule(f"{name} > {most}", f"{name} = {{{name}:,}}: must be at most {most:,}")
        for name in Decoder.numeric()
        if (most := _most(name)) < vega.EXACT_BELOW
    ]
    plain += bounded + of_flash + of_attention
    return plain + [rule for needs in NEEDS.items() for rule in _needs(*needs)]


def _most(size: str) -> int:
    """The largest that a decoder may have of it."""
    bounds = [rule.le for rule in Decoder.model_fields[size].metadata if hasattr(rule, "le")]
    return min(bounds, default=vega.EXACT_BELOW)


def _needs(word: str, needs: tuple[str, tuple[str, ...]]) -> list[Rule]:
    """A part and its sizes: neither without the other."""
    words, sizes = needs
    there = f"indexof({words}, '{word}')"
    return [
        rule
        for name in sizes
        for rule in (
            Rule(f"{there} >= 0 && !{name}", f"{name} = 0: {word} in {{{words}}} needs at least 1"),
            Rule(f"{there} < 0 && {name}", f"{name} = {{{name}}} needs {word} in {words}"),
        )
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
            holds = quantity == "parameter_bytes" or Decoder.covered(quantity, a, r)
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
            "still": {name: 0 for name in RunConfig.numeric() if name not in OF_RUN},
            "switches": [name for name, field in fields.items() if field["switch"]],
            "defaults": _defaults(),
            "free": {choice: _experts_of(choice) for choice in choices},
            "models": {name: _numbers(base, a) for name, (base, a) in named.items()},
            "forms": forms,
            "expressions": list(dataflow.expressions),
            "budgets": list(dataflow.budgets),
            "fields": dataflow.fields,
            "rules": [rule._asdict() for rule in rules()],
            "groups": [(name, variable_of_group(group_of(name))) for name in components],
            "order": [(group, variable_of_group(group)) for group in ORDER],
        },
    }


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
    return NEW_EXPERTS if "experts" in choice.split() else dict.fromkeys(NEW_EXPERTS, 0)


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
