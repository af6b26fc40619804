"""The calculator of the page: decoders of the catalogue, with fields that a reader can change.

The page has no formulas of its own: a script evaluates the nodes of `evaluators/graph.py`.
Conditions and the translation of config.json files are functions of another script.
"""

import re
from collections.abc import Mapping

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import ACCELERATORS
from modelbudget.components.groups import MEMORY
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_forms import formulas
from modelbudget.report.calculator_runs import (
    ALONE,
    CHOICES,
    OF_CLASSES,
    OF_RUN,
    OPTIONS,
    PARTS,
    plain,
    rules,
)
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.charts.chart_tables import grouped
from modelbudget.report.config_translation import default_decoders, follower, translation_data
from modelbudget.report.packing import in_bytes, packed, packed_bytes
from modelbudget.report.page_functions import Function, mistakes, of_expression, script
from modelbudget.report.page_programs import Categories, categories_of
from modelbudget.sweeps.compared import conditions_on_fields
from modelbudget.sweeps.derive import named_architecture, settled
from modelbudget.sweeps.device_defaults import KERNEL, refused_kernels
from modelbudget.sweeps.fields_in_words import field_title


def calculator(catalogue: Catalogue) -> dict:
    """Return the context of the calculator's template, from the formulas and published models.

    In it, `packed` has the data of the calculator's script, `nodes` the numbers of its graph, and
    `functions` a script with its functions, each of which is a number in the data.
    """
    bases = models_of_calculator(catalogue)
    named = {base.name: named_architecture(base) for base in bases}
    fields = [_field(Decoder, name) for name in Decoder.numeric()]
    of_run = [_field(RunConfig, name) for name in OF_RUN]
    data = _choices(fields + of_run) | _models(bases, named)
    graph, nodes = in_bytes(data["graph"])
    functions: dict[Function, int] = {}
    return _controls(bases, fields, of_run) | {
        "packed": packed(
            data | {"graph": graph}, lambda of: functions.setdefault(of, len(functions))
        ),
        "nodes": packed_bytes(nodes),
        "functions": script(functions),
    }


def _controls(bases: list[Base], fields: list[dict], of_run: list[dict]) -> dict:
    """Return what a reader can choose and change, for the template."""
    in_order = sorted(bases, key=lambda base: (base.series or "").lower())
    choices = [{"name": name} | of for name, of in CHOICES.choices_of_run.items()]
    by_name = {control["name"]: control for control in (*choices, *of_run)}
    return {
        "models": len(bases),
        "fields": [*(by_name[name] for name in CHOICES.controls), *fields],
        "quantities": {"parameters": "parameters"}
        | {name: CHOICES.quantities[name] for name in PARTS},
        "series": {
            series: [(base.name, base.label) for base in of_series]
            for series, of_series in grouped(in_order, lambda base: base.series or "").items()
        },
        "devices": [
            (device.name, device.as_reported().bytes) for device in accelerators(ACCELERATORS)
        ],
    }


def _choices(fields: list[dict]) -> dict:
    """Return fields, settings and constraints for the script: what is the same for all models."""
    margins, several, refused = memory_margins(), CHOICES.of_several, refused_kernels(Decoder)
    constant = RunConfig.model_fields.keys() - {*OF_RUN, *OPTIONS}
    return {
        "start": CHOICES.start,
        "start_length": CHOICES.start_length,
        "run": {name: options[0] for name, options in OPTIONS.items()},
        "choices": list(OPTIONS.items()),
        "quantities": list((CHOICES.quantities | CHOICES.peaks).items()),
        "devices": [(device.name, device.bytes) for device in accelerators(ACCELERATORS)],
        "margins": [margins.reserve.bytes, margins.worst_ratio.value],
        "minimum": {field["name"]: field["minimum"] for field in fields},
        "constants": {name: plain(RunConfig.model_fields[name].default) for name in constant},
        "of_run": OF_RUN,
        "meshes": list(dict.fromkeys(several.values())),
        "of_several": [(name, several[name], plain(alone)) for name, alone in ALONE.items()],
        "brought": CHOICES.brought,
        "of_inference": CHOICES.of_inference,
        "switches": [field["name"] for field in fields if field["switch"]],
        "defaults": _defaults(),
        "rules": rules(),
        "memory": {group: variable_of_group(group) for group in MEMORY},
        # In torch's order, each with the messages of why the default is another one.
        "kernels": [(name, mistakes(refused.get(name, ()))) for name in OPTIONS[KERNEL]],
        "config": translation_data(),
    }


def _models(bases: list[Base], named: Mapping[str, Architecture]) -> dict:
    """Return the models for the script, and the formulas of these and of all classes."""
    of_classes, compared = default_decoders(), implementations()[TRANSFORMERS].classes
    known = {name: of_classes[name] for name in compared}
    with_peaks = grouped((*named.values(), *known.values()), categories_of)
    of_form: dict[Categories, list[str]] = {
        values: [] for values in (*with_peaks, *map(categories_of, of_classes.values()))
    }
    for name in sorted(known):
        of_form[categories_of(known[name])].append(name)
    examples = with_peaks | {
        name: [*(named[base.name] for base in bases if base.transformers == name), a]
        for name, a in known.items()
    }
    return formulas(of_form, examples) | {
        "kinds": {base.name: base.transformers for base in bases},
        "models": {base.name: _numbers(base, named[base.name]) for base in bases},
        "only": {  # where the peak of a class was compared, with fields that it can have
            name: list(map(of_expression, conditions_on_fields(OF_CLASSES, name, a)))
            for name, a in known.items()
        },
    }


def models_of_calculator(catalogue: Catalogue) -> list[Base]:
    """Return the decoders of the catalogue, but for those that the page leaves out."""
    return [
        base
        for base in catalogue.bases.values()
        if base.model and base.family is Decoder and base.name not in CHOICES.left_out
    ]


def _field(record, name: str) -> dict:
    info = record.model_fields[name]
    of_run = CHOICES.descriptions.get(name, info.description or "")
    title = field_title(name) if record is Decoder else of_run
    return {
        "name": name,
        "description": re.sub(f"^{name}(: )?", "", title),
        "switch": info.annotation is bool,
        "minimum": next((rule.ge for rule in info.metadata if hasattr(rule, "ge")), 0),
    }


def _defaults() -> dict:
    fields = Decoder.model_fields | {name: RunConfig.model_fields[name] for name in OF_RUN}
    return {name: plain(info.default) for name, info in fields.items() if not info.is_required()}


def _numbers(base: Base, a: Architecture) -> dict:
    """Return a model's label, its fields that differ from the defaults, and those that follow.

    The sequence length is the default one, or n_ctx if that is smaller.
    """
    defaults = _defaults()
    sizes = a.model_dump()
    of_both = sizes | {"length": min(sizes["n_ctx"], defaults["length"])}
    _, derivations = settled(base, {}, {})
    followers = [
        follower(name, of_expression(rule))
        for name, rule in derivations.items()
        if isinstance(rule, Expression) and name in Decoder.numeric()
    ]
    fields = {k: plain(v) for k, v in of_both.items() if k not in defaults or v != defaults[k]}
    return {"label": base.label, "fields": fields, "follow": followers}
