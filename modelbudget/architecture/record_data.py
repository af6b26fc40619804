"""What data files say of the fields of records: their meaning, defaults and constraints."""

from functools import cache
from typing import Any, NamedTuple

from modelbudget.architecture.constraint import Constraint
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

FILES = (CONFIGS / "run_settings.yaml", CONFIGS / "architecture_fields.yaml")


class RecordData(NamedTuple):
    """The section of a record, about its own fields; see architecture_fields.yaml."""

    fields: dict[str, str]
    derived: dict[str, str]
    constraints: tuple[Constraint, ...]


@cache
def _sections() -> dict[str, dict[str, Any]]:
    return {name: of for file in FILES for name, of in load_yaml(file).items()}


@cache
def data_of(record: str) -> RecordData:
    """Return what the files say of a record, by the name of its class, or of a part of a layer."""
    section = _sections().get(record, {})
    constraints = (Constraint(**rule) for rule in section.get("constraints", ()))
    return RecordData(section.get("fields", {}), section.get("derived", {}), tuple(constraints))
