"""What formulas were compared with of a `transformers` class, with difference 0."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division, is_divided
from modelbudget.catalogue.implementations import (
    TRANSFORMERS,
    Compared,
    implementations,
    is_same,
)
from modelbudget.common.expressions import Expression
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.class_code import keys_in_code
from modelbudget.huggingface.classes import translations
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.quantity_names import OF_CONVENTION, OF_PARAMETERS

OF_ARCHITECTURE = OF_PARAMETERS | OF_CONVENTION
"""Quantities that do not depend on who computes."""


def _is_of_architecture(quantity: str, class_name: str | None, run: RunConfig) -> bool:
    """Whether a quantity does not depend on who computes: bytes of a share or a format do.

    Which matrices devices divide, a plan of the class says (`base_model_tp_plan`: no embedding),
    which have a format, the modules that it is made of. Some parameters stay in float32 in dtypes
    that the class names.
    """
    of_class = is_divided(run) or run.weights != "dtype" or _keeps_float32(class_name, run)
    return quantity in OF_ARCHITECTURE and not (quantity == "parameter_bytes" and of_class)


def _keeps_float32(class_name: str | None, run: RunConfig) -> bool:
    """Whether `from_pretrained` keeps parameters of a class in float32 in the run's dtype."""
    return class_name is not None and run.dtype in translations()[class_name].float32_in


def not_compared(
    quantity: str, class_name: str, config: Mapping[str, Any], a: Architecture, run: RunConfig
) -> str | None:
    """Return why the formula of a quantity does not answer for a class; None if it does.

    Parameters and their bytes are those of the architecture, whoever computes. `config` has the
    keys from which the class is built; keys that are left out have the defaults of the class, which
    were compared, and keys that the class does not read have no effect.
    """
    if _is_of_architecture(quantity, class_name, run):
        return None
    if _keeps_float32(class_name, run):
        return f"dtype = {run.dtype}: {class_name} keeps parameters in float32"
    implementation = implementations()[TRANSFORMERS]
    of_class, compared = implementation.classes.get(class_name), implementation.compared
    if of_class is None or compared is None:
        return f"no formula was compared with {class_name}"
    if quantity not in compared.quantities or quantity in of_class.without:
        return f"no formula of {quantity} was compared with {class_name}"
    values = vars(a) | vars(run)
    if division(run) and not Expression(of_class.divided)(values):
        return f"{division(run)}: not compared with {class_name}"
    only = (each.only.get(quantity, "True") for each in (compared, of_class))
    for condition in (*compared.run, *of_class.run, *only):
        if not Expression(condition)(values):
            return f"compared with {class_name} only where {condition}"
    for name, value in implementation.of_class(class_name, config).items():
        if values[name] != value:
            return f"{name} = {show(values[name])}: {class_name} was compared with {show(value)}"
    differs, keys = compared.differs.get(quantity, {}), compared.keys | of_class.keys
    for key, value in _flat(config):
        is_compared = _is_compared(key, value, class_name, keys, compared.without_effect)
        if not is_compared or value in differs.get(key, ()):
            return f"{key} = {show(value)}: not compared with {class_name}"
    return None


def not_compared_at(
    quantity: str, class_name: str | None, file: str | None, a: Architecture, run: RunConfig
) -> str | None:
    """Return why a formula does not answer for the class that a run names; None if it does.

    `class_name` is the class, `file` the config.json of the architecture, as JSON. Families without
    formulas are classes themselves.
    """
    is_ours = a.has_formula and not _is_of_architecture(quantity, class_name, run)
    if run.implementation != TRANSFORMERS or not is_ours:
        return None
    if class_name is None:
        return "no class of transformers is this model"
    try:
        config = class_config(class_name, a, file)
    except ValueError as error:
        return str(error)
    return not_compared(quantity, class_name, config, a, run)


def conditions_on_fields(quantity: str, class_name: str, default: Architecture) -> list[str]:
    """Return expressions of fields that all hold where `not_compared_at` is None for a class.

    A class can have what its translation file sets, the fields of a key together, and of the
    values of keys those that were compared; all other fields are those of its `default`. Patterns
    of layers, and conditions on runs alone, are left out.
    """
    translation, implementation = translations()[class_name], implementations()[TRANSFORMERS]
    of_class, compared = implementation.classes[class_name], implementation.compared
    if compared is None:
        return ["False"]
    keys, inverse = compared.keys | of_class.keys, translation.inverse
    conditions = [each.only[quantity] for each in (compared, of_class) if quantity in each.only]
    texts = {n: repr(value) for n, value in default.model_dump().items()} | default.derivations()
    unused = "n_dense_layer" if texts.get("mlps") == "'mlp'" else "d_ff"
    named = {*translation.computed, "vocab_multiple", unused}
    named |= {"mixers", "window"} if translation.mixers else set()
    for key in translation.defaults:
        meaning = translation.meaning(key)
        if isinstance(meaning, str):
            named.add(meaning)
        elif meaning is not None:
            named |= {name for case in meaning for name in case.fields}
            cases = [
                " and ".join(f"{n} == {value!r}" for n, value in case.fields.items()) or "True"
                for case in meaning
                if _is_compared(key, case.value, class_name, keys, compared.without_effect)
            ]
            conditions.append(" or ".join(dict.fromkeys(cases)) or "False")
        elif key in inverse and key in keys:
            conditions.append(" or ".join(f"{inverse[key]} == {value}" for value in keys[key]))
    return conditions + [f"{n} == {text}" for n, text in texts.items() if n not in named]


def _flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key with its value; of a list each entry, of nested keys the path with dots."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{key}.")
        else:
            entries = value if isinstance(value, list) else [value]
            yield from ((f"{path}{key}", entry) for entry in entries)


def _is_compared(
    key: str, value: Any, class_name: str, keys: Compared, without_effect: list[re.Pattern]
) -> bool:
    classes = translations()[class_name]
    key = classes.aliases.get(key, key)
    if (values := keys.get(key)) is not None:
        return not values or any(is_same(value, allowed) for allowed in values)
    if isinstance(classes.meaning(key), str):
        return True
    if any(pattern.fullmatch(key) for pattern in without_effect):
        return True
    return not keys_in_code(class_name, [key.partition(".")[0]])
