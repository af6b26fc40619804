"""`modelbudget models [WORDS]`: find a published model."""

import re
from typing import Annotated

import typer

from modelbudget.api.class_answers import WITHOUT_FORMULA
from modelbudget.api.command import options
from modelbudget.api.command.text_table import Table
from modelbudget.api.find import CATALOGUE
from modelbudget.api.model import Model
from modelbudget.catalogue.named_models import Base, all_models
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import count, counted

NOT_IN_NUMBER = r"(?!(?<=\d)\d)"
"""After a word: qwen-3 is in no Qwen-32B."""


@options.expanded
def run(
    words: Annotated[list[str] | None, typer.Argument(help="All must be in the name.")] = None,
    *,
    printed: options.Output,
) -> None:
    """List published models, with their parameters and family."""
    wanted = [re.compile(re.escape(word.casefold()) + NOT_IN_NUMBER) for word in words or ()]
    bases = all_models(CATALOGUE)
    matching = [base for base in bases if all(word.search(_text(base)) for word in wanted)]
    if not matching:
        asked = " ".join(words or ())
        raise InputError([f"models {asked}: none; `modelbudget models` lists all {len(bases)}"])
    rows = [_row(base) for base in matching]
    columns = ("name", "parameters", "label", "family")
    cells = [(r["name"], count(r["parameters"]), r["label"], r["family"]) for r in rows]
    table = Table(
        counted(len(matching), "model"), columns, cells, (), ("family",), ("label", "family")
    )
    printed.show({"models": rows}, rows, [table])


def _text(base: Base) -> str:
    same_shape = " ".join(base.model.same_shape) if base.model else ""
    return f"{base.name} {base.label} {base.series} {base.family.name()} {same_shape}".casefold()


def _row(base: Base) -> dict:
    return {
        "name": base.name,
        "parameters": _parameters(base),
        "label": base.label,
        "family": base.family.name(),
    }


def _parameters(base: Base) -> int:
    """Return the parameters of a model: by formula, or as its class was counted."""
    counted = base.model and base.model.exact
    if base.family.name() == WITHOUT_FORMULA and counted:
        return counted
    return Model(base).parameters().total
