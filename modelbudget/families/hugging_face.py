"""Any class of Hugging Face's transformers: measured, without a formula."""

from typing import ClassVar, Self

from pydantic import model_validator

from modelbudget.architecture.without_formula import WithoutFormula


class HuggingFace(WithoutFormula):
    """A class that our formulas do not know, under the config of a model page."""

    switches_of_run: ClassVar[tuple[str, ...]] = (
        "dropout",
        "recompute",
        "target_length",
        "padding",
        "adapter",
        "input_gradient",
    )
    """For a class that lacks one of them the measurement fails with that reason."""

    kind: str
    config: str
    tied: bool = True

    @model_validator(mode="after")
    def is_accepted_by_class(self) -> Self:
        from modelbudget.huggingface.bounded_check import refusal

        if why := refusal(self):
            raise ValueError(why)
        return self

    def build(self):
        from modelbudget.huggingface.unknown_class import build

        return build(self)
