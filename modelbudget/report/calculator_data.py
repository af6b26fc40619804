"""The calculator of the page: every decoder of the catalogue, with fields that a reader can change.

The page has no formulas of its own: a script evaluates the nodes of `evaluators/graph.py`.
Conditions and the translation of config.json files are expressions, which the script parses.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import CONVENTIONS, FLOPS, PARAMETERS
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.terms import GROUP_TITLES
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import ACCELERATORS
from modelbudget.components.groups import MEMORY
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_choices import (
    ALONE,
    BROUGHT,
    CHOICES_OF_RUN,
    DESCRIPTIONS,
    EXCHANGEABLE,
    MAIN,
    NEW_EXPERTS,
    OF_CLASSES,
    OF_INFERENCE,
    OF_RUN,
    OF_SEVERAL,
    PEAKS,
    QUANTITIES,
    START,
    START_LENGTH,
    STATES,
    plain,
)
from modelbudget.report.calculator_forms import formulas
from modelbudget.report.calculator_rules import kernels, rules
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.format import field_title
from modelbudget.report.config_translation import default_decoders, follower, translation_data
from modelbudget.report.page_programs import Categories
from modelbudget.sweeps.compared import not_compared
from modelbudget.sweeps.derive import named_architecture, settled


def _is_compared(class_name: str) -> bool:
    """Whether the training peak of a class, with its defaults, is that of formulas."""
    run = RunConfig.model_validate(implementations()[TRANSFORMERS].of_class(class_name))
    a = default_decoders()[class_name]
    return not not_compared(OF_CLASSES, class_name, {}, a, run)


def calculator_section(catalogue: Catalogue) -> dict:
    """Return the controls for the template, and `data` for the script."""
    named = {
        base.name: (base, named_architecture(base))
        for base in catalogue.bases.values()
        if base.model is not None and base.family is Decoder
    }
    of_classes = default_decoders()
    known = [name for name in implementations()[TRANSFORMERS].classes if _is_compared(name)]
    with_peaks = _categories(
        [*(a for _, a in named.values()), *(of_classes[name] for name in known)]
    )
    exchanged = _exchanged(_categories(a for _, a in named.values()))
    forms = (*with_peaks, *exchanged, *_categories(of_classes.values()))
    categories: dict[Categories, set[str]] = {values: set() for values in forms}
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
            (unit, [convention.name for convention in CONVENTIONS if convention.unit == unit])
            for unit in (PARAMETERS, FLOPS)
        ],
        "series": _by_series([base for base, _ in named.values()]),
        "devices": devices,
        "data": {
            "start": START,
            "start_length": START_LENGTH,
            "run": {name: options[0] for name, (_, options) in CHOICES_OF_RUN.items()},
            "choices": [(name, choices) for name, (_, choices) in CHOICES_OF_RUN.items()],
            "quantities": list((QUANTITIES | PEAKS).items()),
            "conventions": [
                (convention.name, convention.unit, convention.rule) for convention in CONVENTIONS
            ],
            "kinds": {name: base.transformers for name, (base, _) in named.items()},
            "devices": devices,
            "margins": [memory_margins().reserve.bytes, memory_margins().worst_ratio.value],
            "minimum": {name: field["minimum"] for name, field in (fields | of_run).items()},
            "constants": _constants(),
            "of_run": OF_RUN,
            "meshes": list(dict.fromkeys(OF_SEVERAL.values())),
            "of_several": [(name, OF_SEVERAL[name], plain(alone)) for name, alone in ALONE.items()],
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
            "order": [(group, variable_of_group(group)) for group in GROUP_TITLES],
            **formulas(
                tuple((values, tuple(sorted(classes))) for values, classes in categories.items()),
                tuple(with_peaks),
                (
                    *_examples([a for _, a in named.values()] + [of_classes[n] for n in known]),
                    *_examples_of_classes(named, {n: of_classes[n] for n in known}),
                ),
            ),
            "config": translation_data(),
        },
    }


def _constants() -> dict[str, int | str]:
    """Return the run settings that a reader cannot change; switches as 1 or 0."""
    defaults = {
        name: field.default
        for name, field in RunConfig.model_fields.items()
        if name not in (*OF_RUN, *CHOICES_OF_RUN)
    }
    return {name: plain(value) for name, value in defaults.items()}


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


def _examples_of_classes(
    named: dict[str, tuple[Base, Architecture]], of_classes: Mapping[str, Architecture]
) -> Iterator[tuple[str, tuple[Architecture, ...]]]:
    """Yield the models of each class, and the one of its defaults."""
    for name, of_defaults in of_classes.items():
        published = (a for base, a in named.values() if base.transformers == name)
        yield name, (*published, of_defaults)


def _categories(architectures: Iterable[Architecture]) -> list[Categories]:
    """Return the categorical fields of all architectures, each once."""
    fields = (tuple((n, getattr(a, n)) for n in Decoder.categorical()) for a in architectures)
    return list(dict.fromkeys(fields))


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
    by_series: dict[str, list[tuple[str, str]]] = {}
    titled = [(base.series or "", base) for base in bases]
    for series, base in sorted(titled, key=lambda pair: pair[0].lower()):
        by_series.setdefault(series, []).append((base.name, base.label))
    return by_series


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
    sizes = a.model_dump()
    of_both = sizes | {"length": min(sizes["n_ctx"], defaults["length"])}
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
