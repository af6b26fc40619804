"""Learned positions whose first rows may stay unused, as in RoBERTa and BART."""

from typing import Annotated

from pydantic import Field

from modelbudget.architecture import MAX_COUNT, Architecture, Count

CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class OffsetPositionFields(Architecture):
    n_ctx: Count = Field(512, description="longest sequence, in tokens")
    position_offset: CountOrNone = Field(0, description="unused rows before the first position")


def parameters(a, width):
    """One row of `width` for each position, the unused ones included."""
    return (a.n_ctx + a.position_offset) * width
