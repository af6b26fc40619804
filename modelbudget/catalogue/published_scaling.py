"""Numbers that scaling studies print of their models: reads `configs/published_scaling.yaml`."""

from pathlib import Path

from pydantic import Field

from modelbudget.architecture.base import Count, Size
from modelbudget.common.strict import Strict, read_strict


class Published(Strict):
    """One printed number. What it leaves out, its ladder says."""

    model: str
    published: int = Field(gt=0)
    convention: str | None = None
    rounding: Size | None = None
    length: Count | None = None
    tokens: Count | None = None
    added: Size = 0
    note: str | None = None


class Ladder(Strict):
    """Numbers of one source. `reason`: why none of them is a count of its model."""

    title: str
    source: str
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
