"""Any class of Hugging Face's transformers: measured, without a formula."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.terms import Terms


class HuggingFace(Architecture):
    """A class that our formulas do not know, under the config of a model page.

    The sizes are those that a sweep can vary; 0 leaves a size as the config or its class has it.
    """

    has_formula: ClassVar[bool] = False
    has_cache: ClassVar[bool] = True
    """Most classes have one; for others the measurement fails with that reason."""

    kind: str = Field(description="the class in transformers, e.g. XLNetLMHeadModel")
    config: str = Field(description="config.json, as text")
    n_vocab: Size = Field(0, description="vocabulary size, in tokens")
    d_model: Size = Field(0, description="width of the residual stream")
    n_layer: Annotated[int, Field(ge=0, le=10_000)] = Field(0, description="layers")
    n_head: Size = Field(0, description="query heads")
    n_kv_head: Size = Field(0, description="key and value heads")
    d_head: Size = Field(0, description="width of one head")
    d_ff: Size = Field(0, description="hidden width of the MLP")
    n_ctx: Size = Field(0, description="longest sequence, in tokens")
    tied: bool = Field(True, description="the head uses the token embedding's matrix")

    @model_validator(mode="after")
    def its_class_accepts_it(self) -> Self:
        from modelbudget.huggingface.bounded import check

        check(self)
        return self

    @staticmethod
    def parameters(a) -> Terms:
        return {}

    def build(self):
        from modelbudget.huggingface.unknown import build

        return build(self)
