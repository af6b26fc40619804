"""Learned positions whose first rows may stay unused, as in RoBERTa and BART."""

from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture import Architecture, Count, Size


class OffsetPositionFields(Architecture):
    """For families with a `position` of which one kind is learned."""

    n_ctx: Count = Field(512, description="longest sequence, in tokens")
    position_offset: Size = Field(0, description="unused rows before the first position")

    @model_validator(mode="after")
    def only_learned_positions_have_rows(self) -> Self:
        if self.position_offset and self.position != "learned":
            raise ValueError(
                f"position_offset = {self.position_offset} needs position: learned; "
                f"position: {self.position} has no rows"
            )
        return self


def parameters(a, width):
    """One row of `width` for each position, the unused ones included."""
    return (a.n_ctx + a.position_offset) * width
