"""Learned positions whose first rows may stay unused, as in RoBERTa and BART."""

from pydantic import Field

from modelbudget.architecture import Architecture, Count, Size


class OffsetPositionFields(Architecture):
    n_ctx: Count = Field(512, description="longest sequence, in tokens")
    position_offset: Size = Field(0, description="unused rows before the first position")


def parameters(a, width):
    """One row of `width` for each position, the unused ones included."""
    return (a.n_ctx + a.position_offset) * width
