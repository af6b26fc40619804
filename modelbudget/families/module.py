"""Any torch module: a user's own model, measured without a formula."""

from typing import Any

from pydantic import Field, model_validator

from modelbudget.architecture.without_formula import WithoutFormula
from modelbudget.common import user_code


class Module(WithoutFormula):
    """A module that a function of the user returns.

    The sizes that are not 0 are its keyword arguments, so that a sweep can vary them. The function
    is called only if the command line allows it: `--config modules=package.file:function`. The
    module is called with token indices (batch, length), and with targets if its `forward` has such
    an argument; then it returns its loss, and otherwise logits (batch, length, n_vocab).
    """

    module: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        description="function that returns the torch module, as package.file:function",
    )
    code: str = ""

    @model_validator(mode="before")
    @classmethod
    def has_digest_of_its_code(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and isinstance(fields.get("module"), str):
            return fields | {"code": user_code.digest(fields["module"])}
        return fields

    @classmethod
    def is_language_model(cls) -> bool:
        return True

    def build(self):
        sizes = {
            name: getattr(self, name) for name in WithoutFormula.model_fields if getattr(self, name)
        }
        return user_code.load(self.module)(**sizes)
