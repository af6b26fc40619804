"""Numbers that scaling studies print of their models: reads `configs/published_scaling.yaml`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Size
from modelbudget.common.strict import Strict, read_strict


class Published(Strict):
    """One printed number. What it leaves out, its ladder says."""

    model: str = Field(description="the label of a point of a sweep")
    published: int = Field(gt=0, description="FLOPs of training may exceed 64 bits")
    convention: str | None = None
    rounding: Size | None = Field(None, description="half of the last printed digit")
    length: Count | None = Field(None, description="of the sequences, where FLOPs are printed")
    tokens: Count | None = Field(None, description="of training, where its FLOPs are printed")
    added: Size = Field(0, description="parameters of parts that no component has, by hand")
    note: str | None = None


class Ladder(Strict):
    """Numbers of one source. `reason`: why none of them is a count of its model."""

    title: str
    source: str
    checked: Literal["read", "recalled"]
    convention: str
    rounding: Size = 0
    length: Count | None = None
    reason: str | None = None
    note: str | None = None
    rows: list[Published] = Field(min_length=1)


class Ladders(Strict):
    """The file."""

    ladders: list[Ladder] = Field(min_length=1)


def published_scaling(path: Path) -> list[Ladder]:
    """Read all ladders, in the order of the file. Raises InputError."""
    return read_strict(path, Ladders, Ladder, Published).ladders
