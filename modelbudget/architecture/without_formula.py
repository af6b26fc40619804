"""Families that are measured and have no formula."""

from typing import Annotated, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.terms import Terms


class WithoutFormula(Architecture):
    """The sizes are those that a sweep can vary; 0 leaves a size as the model's own code has it."""

    has_formula: ClassVar[bool] = False
    has_cache: ClassVar[bool] = True
    """Most models have one; for others the measurement fails with that reason."""

    n_vocab: Size = Field(0, description="vocabulary size, in tokens")
    d_model: Size = Field(0, description="width of the residual stream")
    n_layer: Annotated[int, Field(ge=0, le=10_000)] = Field(0, description="layers")
    n_head: Size = Field(0, description="query heads")
    n_kv_head: Size = Field(0, description="key and value heads")
    d_head: Size = Field(0, description="width of one head")
    d_ff: Size = Field(0, description="hidden width of the MLP")
    n_ctx: Size = Field(0, description="longest sequence, in tokens")

    @staticmethod
    def parameters(a) -> Terms:
        return {}
