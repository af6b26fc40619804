"""Check that the files about Hugging Face's classes name existing families and fields."""

from collections.abc import Iterable, Iterator
from functools import cache

from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import SCHEMA, show
from modelbudget.families import families
from modelbudget.huggingface.classes import (
    FOLDER,
    Translation,
    shared_keys,
    translations,
    without_inherited,
)


@cache
def check_huggingface_files() -> None:
    """Check all files. Raises InputError with every mistake."""
    by_type = {translation.model_type: translation for translation in translations().values()}
    wrong = {name: list(_mistakes(translation)) for name, translation in by_type.items()}
    mistakes = [
        f"{FOLDER / 'model_types' / name}.yaml: {line}"
        for name, line in without_inherited(
            wrong, {n: translation.like for n, translation in by_type.items()}
        )
    ]
    every = {field for family in families().values() for field in family.model_fields}
    mistakes += [
        f"{FOLDER / 'keys.yaml'}: {line}" for line in _unknown(shared_keys().fields_set(), every)
    ]
    if mistakes:
        raise InputError(mistakes)


def _mistakes(translation: Translation) -> Iterator[str]:
    family = families().get(translation.family)
    if family:
        yield from _unknown(translation.fields_set(), family.model_fields)
    else:
        known = offered(translation.family, families(), "modelbudget/families")
        yield f"family = {show(translation.family)}: unknown family{known}"


def _unknown(fields: Iterable[tuple[str, str]], known: Iterable[str]) -> Iterator[str]:
    for place, field in fields:
        if field not in known:
            yield f"{place}: {show(field)}: unknown field{offered(field, sorted(known), SCHEMA)}"
