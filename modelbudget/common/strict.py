"""Records that are read from YAML files."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.validation_messages import SCHEMA, describe

TYPES = ("bool", "int", "float", "str")


class Strict(BaseModel):
    """A frozen record without unknown keys; values are not converted to other types.

    `configs/file_keys.yaml` says what the keys mean, by the name of the record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


Schema = TypeVar("Schema", bound=Strict)


def read_strict(
    path: Path, schema: type[Schema], *parts: type[Strict], rest: str = SCHEMA
) -> Schema:
    """Read a record from a YAML file. Raises InputError with every mistake.

    Keys of `schema` and of its `parts` are suggested for unknown ones; `rest` lists all of them.
    """
    return as_strict(load_yaml(path), path, schema, *parts, rest=rest)


def shipped(
    path: Path, schema: type[Schema], *parts: type[Strict], rest: str = SCHEMA
) -> Callable[[], Schema]:
    """Return what reads a file of `configs/`, as `read_strict`, when it is first called."""
    return cache(partial(read_strict, path, schema, *parts, rest=rest))


def as_strict(
    content: dict, path: Path, schema: type[Schema], *parts: type[Strict], rest: str = SCHEMA
) -> Schema:
    """Return the record in the content of a file, as `read_strict`."""
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        keys = [key for part in (schema, *parts) for key in part.model_fields]
        lines = describe(error, keys, TYPES, "", rest)
        raise InputError([f"{path}: {line}" for line in lines]) from None
