"""Fields of a point: chosen values, those of its base, and expressions for the others."""

from collections.abc import Collection
from fractions import Fraction
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from pydantic import ValidationError

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_rules import content
from modelbudget.catalogue.implementations import Setting, settings
from modelbudget.catalogue.named_models import Base
from modelbudget.common.expressions import Expression, expression_of
from modelbudget.common.validation_messages import describe
from modelbudget.sweeps.device_defaults import DeviceDefault, device_defaults
from modelbudget.sweeps.sweep_file import Value

AnyRecord = TypeVar("AnyRecord", bound=Record)

Rule = Expression | Setting | DeviceDefault
"""The value of a field from those of others."""
FIELDS_OF_RUN = RunConfig.model_fields.keys()


def resolve(base: Base, chosen: dict[str, Value], derive: dict[str, str]) -> dict:
    """Return all fields of a point that are set or derived; derived ones as exact numbers.

    Precedence: chosen values, the sweep's `derive`, the base's fields, expressions of series and
    family. Raises ValueError.
    """
    values, rules = settled(base, chosen, derive)
    for name, expression in rules.items():
        if expression.names <= values.keys():  # else validation reports what is missing
            values[name] = derived(name, expression, values)
    return values


def derived(name: str, expression: Rule, values: dict):
    """Evaluate the expression of a field. Raises ValueError."""
    try:
        return expression(values)
    except ValueError as error:
        is_of_class = isinstance(expression, Setting)  # which is refused by itself
        raise ValueError(f"{error}" if is_of_class else f"{name}: {error}") from None


def keeps(place: int, constraint: str, values: dict[str, Value]) -> bool:
    """Return whether a point keeps a constraint of its sweep. Raises ValueError."""
    try:
        return expression_of(constraint).holds(values)
    except ValueError as error:
        raise ValueError(f"constraints[{place}]: {error}") from None


def settled(
    base: Base, chosen: dict[str, Value], derive: dict[str, str]
) -> tuple[dict[str, Value], dict[str, Rule]]:
    """Return the fields that are set, and the expressions of the others in order of evaluation.

    Among the expressions are the run settings that a CUDA device has by default, and with an
    `implementation` those that it decides.

    Raises ValueError if expressions are circular.
    """
    family = base.family
    values = {k: v for k, v in base.fields.items() if k not in derive} | chosen
    others = {*content()["switches"]}.difference(family.switches_of_run)
    of_run = {name: text for name, text in RunConfig.derivations().items() if name not in others}
    texts = family.derivations() | of_run | base.derive | derive
    has_implementation = "implementation" in values or "implementation" in texts
    rules = _of_run(family, base.transformers, base.config, has_implementation)
    rules = {**rules, **{name: expression_of(text) for name, text in texts.items()}}
    rules = {name: rule for name, rule in rules.items() if name not in values}
    order = _order(tuple((name, rule.names) for name, rule in rules.items()))
    defaults = {name: value for name, value in defaults_of(family).items() if name not in rules}
    return defaults | values, {name: rules[name] for name in order}


@cache
def _of_run(
    family: type[Architecture], class_name: str | None, file: str | None, has_implementation: bool
) -> dict[str, Rule]:
    """Return the run settings that follow from others if nothing sets them."""
    of_device = device_defaults(family)
    if not has_implementation:
        return {**of_device}
    of_both = {
        name: Setting(name, class_name, rule.config, of_device[name]) if name in of_device else rule
        for name, rule in settings(class_name, file).items()
    }
    return {**of_device, **of_both}


@cache
def defaults_of(family: type[Architecture]) -> dict[str, Value]:
    """Return the defaults of all fields of a family and of the run that have one."""
    fields = family.model_fields | RunConfig.model_fields
    return {name: field.default for name, field in fields.items() if not field.is_required()}


@cache
def _order(rules: tuple[tuple[str, frozenset[str]], ...]) -> list[str]:
    """Return the names of rules so that each comes after those that it reads."""
    graph = {name: [n for n, _ in rules if n in names] for name, names in rules}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise ValueError(f"derive: {' → '.join(error.args[1])} is circular") from None


def whole(name: str, value):
    """Convert a derived value to an integer. Raises ValueError if it is a fraction."""
    if type(value) is not Fraction:  # faster than isinstance, which calls its abstract base class
        return value
    if value.denominator != 1:
        raise ValueError(
            f"{name} = {float(value):g} is not a whole number; choose sizes that divide"
        )
    return int(value)


def record(schema: type[AnyRecord], values: dict, follow: Collection[str]) -> AnyRecord:
    try:
        return schema.model_validate({name: whole(name, value) for name, value in values.items()})
    except ValidationError as error:
        raise ValueError("\n".join(wrong_fields(error, schema, follow))) from None


def missing_fields(base: Base, chosen: Collection[str]) -> list[str]:
    """Return the fields of the architecture that have neither a value nor an expression."""
    required = [name for name, field in base.family.model_fields.items() if field.is_required()]
    has_value = {*base.fields, *chosen, *with_expression(base, {})}
    return [name for name in required if name not in has_value]


def resolved(
    base: Base, chosen: dict[str, Value], derive: dict[str, str] | None = None
) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run of a base with chosen values. Raises ValueError."""
    return records(base, resolve(base, chosen, derive or {}), derive or {})


def records(
    base: Base, values: dict[str, Value], derive: dict[str, str]
) -> tuple[Architecture, RunConfig]:
    """Return the architecture and the run that all fields of a point make. Raises ValueError."""
    of_run = {name: value for name, value in values.items() if name in FIELDS_OF_RUN}
    of_model = {name: value for name, value in values.items() if name not in of_run}
    follow = with_expression(base, derive)
    return record(base.family, of_model, follow), record(RunConfig, of_run, follow)


def wrong_fields(
    error: ValidationError,
    schema: type[Record],
    follow: Collection[str],
    types: Collection[str] | None = None,
) -> list[str]:
    """Return a line for each mistake in a record; with `types`, only those pydantic error types.

    A field that follows from others by an expression (`follow`) is not reported as missing if one
    of those is missing.
    """

    def is_needed(mistake: dict) -> bool:
        return types is None or mistake["type"] in types

    def first(mistake: dict) -> bool:
        return is_needed(mistake) and not (
            mistake["type"] == "missing" and mistake["loc"][0] in follow
        )

    mistakes = describe(error, schema.model_fields, keep=first)
    return mistakes or describe(error, schema.model_fields, keep=is_needed)


def with_expression(base: Base, derive: dict[str, str]) -> Collection[str]:
    return (base.family.derivations() | RunConfig.derivations() | base.derive | derive).keys()


def named_architecture(base: Base) -> Architecture:
    """Return the published architecture of a model. Raises ValueError if fields are missing."""
    values = resolve(base, {}, {})
    fields = {name: value for name, value in values.items() if name not in FIELDS_OF_RUN}
    return record(base.family, fields, with_expression(base, {}))
