"""Checks of single names and values of a sweep."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

from pydantic import TypeAdapter, ValidationError

from modelbudget.architecture.record import Record
from modelbudget.architecture.run_adapter import OF_ADAPTER
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base
from modelbudget.common.expressions import expression_of
from modelbudget.common.suggestions import unknown_field
from modelbudget.common.validation_messages import SCHEMA, describe, show
from modelbudget.families import families
from modelbudget.sweeps.fields_in_words import UNITS
from modelbudget.sweeps.sweep_file import Sweep, Value
from modelbudget.sweeps.sweep_mistakes import Mistakes

NAMES_OF_A_POINT = ("base", "label")


def check_names_and_values(sweep: Sweep, bases: dict[str, Base], mistakes: Mistakes) -> None:
    """Add mistakes for unknown fields and for values that their field does not allow.

    If a base is unknown, fields of all families are allowed.
    """
    schemas = [*dict.fromkeys(base.family for base in bases.values()), RunConfig]
    named = {sweep.base, *sweep.axes().get("base", ()), *(p.get("base") for p in sweep.points)}
    certain = bases and named - {None} <= bases.keys()
    allowed = schemas if certain else [*families().values(), RunConfig]
    fields = {name for schema in allowed for name in schema.model_fields}
    for key, name, value in _values_in(sweep):
        if name not in fields:
            key = key.partition("[")[0] if key.startswith("grid") else key
            of_point = NAMES_OF_A_POINT if key.startswith("points") else ()
            mistakes.add(unknown_key(key, name, fields.union(of_point)))
        for schema in [schema for schema in schemas if name in schema.model_fields][:1]:
            try:
                field_value(schema, name, value, key)
            except ValueError as error:
                mistakes.add(str(error))
    if not _has_adapter(sweep, bases):
        for key, name, value in _values_in(sweep):
            if name in OF_ADAPTER:
                mistakes.add(f"{key} = {show(value)}: of no adapter; allowed with adapter: lora, …")
    for name, values in sweep.axes().items():
        for (_, value), n in Counter((type(value), value) for value in values).items():
            if n > 1:
                mistakes.add(f"grid.{name}: contains {show(value)} {n} times; give it once")
    for i, point in enumerate(sweep.points):
        if not (label := str(point.get("label", ""))).isprintable():
            mistakes.add(f"points[{i}].label = {show(label)}: contains a control character")
    for name, text in sweep.derive.items():
        if name not in fields:
            mistakes.add(unknown_key(f"derive.{name}", name, fields))
        _check_expression(f"derive.{name}", text, fields, mistakes)
    for i, text in enumerate(sweep.constraints):
        _check_expression(f"constraints[{i}]", text, fields, mistakes)


def _values_in(sweep: Sweep) -> Iterator[tuple[str, str, Value]]:
    """Yield key, field and value of all values in the file."""
    for name, value in sweep.fixed.items():
        yield f"fixed.{name}", name, value
    for name, values in sweep.axes().items():
        if name != "base":
            for i, value in enumerate(values):
                yield f"grid.{name}[{i}]", name, value
    for i, point in enumerate(sweep.points):
        for name, value in point.items():
            if name not in NAMES_OF_A_POINT:
                yield f"points[{i}].{name}", name, value


def _has_adapter(sweep: Sweep, bases: dict[str, Base]) -> bool:
    """Whether some point may have an adapter, or serves some."""
    of_bases = [name for base in bases.values() for name in (*base.fields, *base.derive)]
    values = [(name, value) for _, name, value in _values_in(sweep)]
    return bool({"adapter", "served_adapters"} & {*sweep.derive, *of_bases}) or any(
        value not in ("none", 0) for name, value in values if name in ("adapter", "served_adapters")
    )


def unknown_key(key: str, name: str, fields: set[str]) -> str:
    return f"{key}: {unknown_field(name, sorted(fields), SCHEMA)}"


@cache
def _adapter(schema: type[Record], name: str) -> TypeAdapter:
    field = schema.model_fields[name]
    return TypeAdapter(field.rebuild_annotation(), config={"strict": True})


def field_value(schema: type[Record], name: str, value: Value, key: str = ""):
    """Convert a value to the type of a field. Raises ValueError naming the key or the field."""
    try:
        return _adapter(schema, name).validate_python(value)
    except ValidationError as error:
        raise ValueError("\n".join(describe(error, within=key or name))) from None


def _check_expression(key: str, text: str, fields: set[str], mistakes: Mistakes) -> None:
    try:
        names = expression_of(text).names
    except ValueError as error:
        mistakes.add(f"{key}: {error}")
        return
    for name in sorted(names - fields):
        place = f"{key} = {show(text)}: {name}"
        of_quantity = "a quantity, of a model that is made first; allowed: fields, or solve: within"
        is_quantity = name in UNITS
        mistakes.add(f"{place}: {of_quantity}" if is_quantity else unknown_key(place, name, fields))
