"""The calculator of fewer models: with every value of every categorical field of a decoder.

Patterns of layers have every part, and every length.

Formulas of models with equal categorical fields are the same; the calculator of all takes a minute.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

from helpers.tiers import ALL
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.families.decoder import Decoder
from modelbudget.report import calculator_data
from modelbudget.report.calculator_data import calculator
from modelbudget.report.config_translation import default_decoders
from modelbudget.sweeps.derive import named_architecture

BY_NAME = "deepseek-v3", "palm-540b", "gpt-2-124m", "llama-3-8b", "bloom-3b", "mistral-7b-v0.1"
CLASSES_BY_NAME = "Llama4ForCausalLM", "NemotronHForCausalLM"
"""Models and classes that tests open by name."""


def kind_of(a: Decoder) -> tuple:
    return tuple(getattr(a, name) for name in Decoder.categorical())


@cache
def few_models(catalogue: Catalogue, every: bool = ALL) -> Catalogue:
    """Return a catalogue with the decoders of few kinds; `every`: of all, as with TESTS=all."""
    decoders = _decoders(catalogue)
    few = copy.copy(catalogue)
    few.bases = {
        name: base
        for name, base in catalogue.bases.items()
        if every or name not in decoders or kind_of(decoders[name]) in _few_kinds(catalogue)
    }
    return few


@cache
def few_classes(catalogue: Catalogue, every: bool = ALL) -> dict[str, Decoder]:
    """Return the classes of transformers whose defaults are of these kinds."""
    return {
        name: a
        for name, a in default_decoders().items()
        if every or kind_of(a) in _few_kinds(catalogue)
    }


def compared_classes(catalogue: Catalogue) -> dict:
    """Return those of these classes whose run settings are known, with the settings."""
    return _compared(few_classes(catalogue))


def calculator_of_few(catalogue: Catalogue, every: bool = ALL) -> dict:
    """Return the calculator of these models and classes."""
    with only_classes(few_classes(catalogue, every)):
        return calculator(few_models(catalogue, every))


@contextmanager
def only_classes(classes: dict[str, Decoder]) -> Iterator[None]:
    """Let calculators have no other classes of transformers than these."""
    of_transformers = implementations()[TRANSFORMERS].model_copy(
        update={"classes": _compared(classes)}
    )
    few = implementations() | {TRANSFORMERS: of_transformers}
    with (
        patch.object(calculator_data, "default_decoders", lambda: classes),
        patch.object(calculator_data, "implementations", lambda: few),
    ):
        yield


def _compared(classes: dict[str, Decoder]) -> dict:
    known = implementations()[TRANSFORMERS].classes
    return {name: run for name, run in known.items() if name in classes}


def _decoders(catalogue: Catalogue) -> dict[str, Decoder]:
    bases = calculator_data.models_of_calculator(catalogue)
    return {base.name: named_architecture(base) for base in bases}


@cache
def _few_kinds(catalogue: Catalogue) -> set[tuple]:
    """Choose kinds one by one, each time that with most values that no chosen kind has."""
    decoders, classes = _decoders(catalogue), default_decoders()
    kinds = list(dict.fromkeys(map(kind_of, (*decoders.values(), *classes.values()))))
    chosen = {kind_of(decoders[name]) for name in BY_NAME}
    chosen |= {kind_of(classes[name]) for name in CLASSES_BY_NAME}
    left = set().union(*map(_values, kinds)).difference(*map(_values, chosen))
    while left:
        best = max(kinds, key=lambda kind: len(left & _values(kind)))
        chosen.add(best)
        left -= _values(best)
    return chosen


def _values(kind: tuple) -> set[tuple[int, str | int]]:
    """Return the values of the fields; of a pattern of layers its names, and how many there are."""
    names = [(field, str(value).split()) for field, value in enumerate(kind)]
    return {(field, name) for field, several in names for name in (*several, len(several))}
