"""What a model is: a strict, frozen record of the numbers that determine it.

A family (`modelbudget/families/`) is a record together with its formulas and its torch module.
Nothing here knows torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from modelbudget.terms import Terms

if TYPE_CHECKING:
    from torch import nn

MAX_COUNT = 2**63 - 1
"""Tables hold 64-bit integers. What does not fit is refused, never wrapped."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(ge=0, le=MAX_COUNT)]
"""A count that may be 0, where 0 means that there is none."""


class Architecture(BaseModel):
    """The base of all families: subclasses add fields, formulas and `build`.

    `derived` gives, for fields that usually follow from others, the expression that fills them
    when nobody sets them. A family without a formula is measured, on meta, and not compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    derived: ClassVar[dict[str, str]] = {}
    has_formula: ClassVar[bool] = True

    @staticmethod
    @abstractmethod
    def parameters(a: Any) -> Terms:
        """Parameters by component, from the fields of `a` in any reading.

        `a` is anything with this family's fields as attributes: a record, Polars columns, SymPy
        symbols, Vega signals. Sizes and switches may be any of these and only take part in
        arithmetic; words are text in every reading and may be compared.
        """

    @abstractmethod
    def build(self) -> nn.Module:
        """The torch model itself, on the current default device and dtype."""

    @classmethod
    def name(cls) -> str:
        """The family's name in sweep files: `BareLayer` is `bare-layer`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def sizes(cls) -> list[str]:
        """The fields that are numbers: sizes, and switches (yes is 1, no is 0)."""
        return [name for name, field in cls.model_fields.items() if field.annotation in (int, bool)]

    @classmethod
    def words(cls) -> list[str]:
        """The fields that hold a word, like `norm: rmsnorm`."""
        return [name for name in cls.model_fields if name not in cls.sizes()]

    @classmethod
    def derivations(cls) -> dict[str, str]:
        """`derived` of this family and of all the parts that it is made of."""
        return {
            name: expression
            for base in reversed(cls.__mro__)
            for name, expression in vars(base).get("derived", {}).items()
        }

    def digest(self) -> str:
        """Names the architecture by its content: equal records, equal digests."""
        content = json.dumps([self.name(), self.model_dump()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]
