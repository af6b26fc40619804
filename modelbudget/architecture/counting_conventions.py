"""Conventions by which papers and training code count parameters, and FLOPs per training token.

Read from `configs/counting_conventions.yaml`. They take the terms of a formula or those counted on
a module, in every reading of `architecture/evaluators`.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.formula_arguments import Fields
from modelbudget.architecture.stored_formats import value_of
from modelbudget.architecture.terms import Term, Terms, total
from modelbudget.common.expressions import LazyValues
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, as_strict

PATH = CONFIGS / "counting_conventions.yaml"
PARAMETERS, FLOPS = "parameters", "FLOPs per token"


def _is_input(component: str) -> bool:
    return component == "embedding.token" or component.startswith("embedding.token.")


def _is_head(component: str) -> bool:
    return component == "head" or component.startswith("head.")


LEFT_OUT: dict[str, Callable[[str], bool]] = {
    "total": lambda component: False,
    "without_input_embedding": _is_input,
    "without_positions": lambda component: component == "embedding.position",
    "without_vocabulary": lambda component: _is_input(component) or _is_head(component),
    "without_embeddings": lambda component: (
        component.startswith("embedding.") or _is_head(component)
    ),
    "without_embeddings_and_norms": lambda component: (
        not component.startswith("layer.") or component.startswith("layer.norm")
    ),
}
"""Sums of parameters by name: the components that each leaves out."""


class Convention(Strict):
    """How one number is counted."""

    name: str
    unit: Literal["parameters", "FLOPs per token"]
    rule: str
    source: str
    expression: str = Field(alias="value")
    fields: list[str] = Field([])

    def value(self, terms: Terms, a: Fields, length: Any) -> Any:
        """Return the count from terms of parameters, fields, and the sequence length."""

        def read(name: str) -> Any:
            """Return a sum of components, the rows of the embedding, or a field."""
            if is_left_out := LEFT_OUT.get(name):
                return total({n: term for n, term in terms.items() if not is_left_out(n)})
            if name == "rows":
                return a.vocab_multiple * ceil_div(a.n_vocab, a.vocab_multiple)
            return getattr(a, name)

        return value_of(self.expression, LazyValues(read, {"length": length}))

    def why_not(self, family: Any) -> str | None:
        """Return why the convention says nothing about a family, None if it does."""
        missing = [name for name in self.fields if name not in family.model_fields]
        if not family.has_formula:
            return f"{family.name()} names its components in other ways"
        return f"{family.name()} has no {missing[0]}" if missing else None

    def terms(self, family: Any, a: Fields, length: Any) -> Terms:
        """Return the count as the only term, in the reading of the fields."""
        of_token = getattr(family, "active_parameters", family.parameters)
        components = (family.parameters if self.unit == PARAMETERS else of_token)(a)
        return {"model": Term(self.value(components, a, length))}


BY_NAME = {
    name: as_strict({"name": name} | keys, PATH, Convention)
    for name, keys in load_yaml(PATH)["conventions"].items()
}
CONVENTIONS = tuple(BY_NAME.values())
"""All conventions, those of parameters first."""
