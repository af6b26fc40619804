"""A strict, frozen record of numbers, booleans and categories: base of architectures and runs."""

import hashlib
import json
import re
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from modelbudget.architecture.constraint import Check, check_all, may_read
from modelbudget.architecture.record_data import data_of

MAX_COUNT = 2**63 - 1
"""Tables have 64-bit integers. Larger numbers are rejected, never wrapped."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""A count that may be 0, where 0 means that there is none."""

MAX_DEPTH = 10_000
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)]
"""How many layers, each an object that has to be held: the deepest model that people have trained
on text has hundreds. A number without a bound would fill the memory, even on meta."""
Parts = Annotated[int, Field(ge=1, le=1_000_000)]
"""Maximum number of parts of one tensor that formulas iterate over: heads, experts."""


NO_DEFAULT = object()


class Record(BaseModel):
    """Fields are sizes (numbers), switches (yes or no) and categories (text).

    `derived` gives, for fields that usually follow from others, the expression that fills them
    when nobody sets them. `constraints` are checked in order, those of base classes first; the
    first that does not hold rejects the record. Both, and what fields mean, come from data files
    too (`record_data.py`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
    derived: ClassVar[dict[str, str]] = {}
    constraints: ClassVar[tuple[Check, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Give the fields their descriptions."""
        for name, meaning in data_of(cls.__name__).fields.items():
            cls.model_fields[name].description = meaning

    @classmethod
    def name(cls) -> str:
        """Return the record's name in files: `BareLayer` is `bare-layer`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    @cache
    def numeric(cls) -> list[str]:
        """Return the names of the numeric fields: sizes, and switches (yes is 1, no is 0)."""
        return [name for name, field in cls.model_fields.items() if field.annotation in (int, bool)]

    @classmethod
    @cache
    def categorical(cls) -> list[str]:
        """Return the names of the categorical fields, such as `norm: rmsnorm`."""
        return [name for name in cls.model_fields if name not in cls.numeric()]

    @classmethod
    @cache
    def derivations(cls) -> dict[str, str]:
        """Return `derived` of this record and of all its base classes, merged."""
        return {
            name: expression
            for base in reversed(cls.__mro__)
            for of in (vars(base).get("derived", {}), data_of(base.__name__).derived)
            for name, expression in of.items()
        }

    @classmethod
    @cache
    def all_constraints(cls) -> list[Check]:
        """Return the `constraints` of this record and of all its base classes."""
        return [
            constraint
            for base in reversed(cls.__mro__)
            for of in (vars(base).get("constraints", ()), data_of(base.__name__).constraints)
            for constraint in of
        ]

    @classmethod
    @cache
    def defaults(cls) -> dict[str, Any]:
        fields = cls.model_fields.items()
        return {name: field.get_default() for name, field in fields if not field.is_required()}

    @classmethod
    @cache
    def constraints_about(cls, fields: frozenset[str]) -> list[Check]:
        """Return the constraints that may read one of these fields."""
        return [check for check in cls.all_constraints() if may_read(check, fields)]

    @model_validator(mode="after")
    def keeps_constraints(self) -> Self:
        """Raise ValueError if a constraint does not hold. Those that read defaults alone do."""
        defaults, values = self.defaults(), vars(self)
        others = [name for name in values if values[name] != defaults.get(name, NO_DEFAULT)]
        check_all(self.constraints_about(frozenset(others)), values)
        return self

    def digest(self) -> str:
        """Names the record by its content: equal records, equal digests."""
        return _digest(self)


@cache  # a sweep has one run for thousands of points, whose digest is read again and again
def _digest(record: Record) -> str:
    content = json.dumps([record.name(), record.model_dump()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
