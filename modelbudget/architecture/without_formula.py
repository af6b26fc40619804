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

    n_vocab: Size = 0
    d_model: Size = 0
    n_layer: Annotated[int, Field(ge=0, le=10_000)] = 0
    n_head: Size = 0
    n_kv_head: Size = 0
    d_head: Size = 0
    d_ff: Size = 0
    n_ctx: Size = 0

    @staticmethod
    def parameters(a) -> Terms:
        return {}
