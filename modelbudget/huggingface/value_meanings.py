"""Values of single keys of a config.json: the fields that they set, or what is wrong with them."""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import Case, Meaning

ABSENT = object()
WITHOUT_END = ("n_ctx", "window")
"""Fields for which classes may have -1: no bound."""


class NoFormulaError(ValueError):
    """Values of a config.json that its class may have, but no formula covers."""


class NoSizeError(ValueError):
    """Sizes of a config.json that no class accepts: text, keys with values, negative numbers."""


class Mistakes(NamedTuple):
    """Messages about a config: what is wrong in it, what no formula covers, what no class accepts.

    The last are among those that are wrong.
    """

    wrong: list[str]
    unsupported: list[str]
    no_size: list[str]

    def lines(self) -> list[str]:
        return [*self.wrong, *self.unsupported]

    def error(self) -> ValueError:
        """Return the error with all lines, of the class that says who may have such values."""
        error_class = ValueError if self.wrong else NoFormulaError
        return (NoSizeError if self.no_size else error_class)("\n".join(self.lines()))


def look_up(config: dict, path: str):
    value = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            return ABSENT
        value = value[part]
    return value


def of_all_layers(meaning: Meaning | None, value):
    """Return the entry of a list that repeats it for each layer, of a key that has no lists."""
    if not isinstance(value, list) or not value or any(item != value[0] for item in value):
        return value
    cases = meaning if isinstance(meaning, list) else []
    has_lists = meaning is None or any(isinstance(case.value, list) for case in cases)
    return value if has_lists else value[0]


def of_size(field: str, key: str, value, mistakes: Mistakes) -> dict[str, int]:
    if value in (None, "auto"):
        return {}
    of_layers: list[Any] = value if isinstance(value, list) and value else [value]
    size = of_layers[0]
    if any(isinstance(item, bool) or not isinstance(item, int) for item in of_layers):
        mistakes.wrong.append(f"{key} = {show(value)}: must be a whole number")
        if isinstance(value, str | dict):
            mistakes.no_size.append(mistakes.wrong[-1])
    elif any(item < 0 for item in of_layers):
        mistakes.wrong.append(f"{key} = {show(value)}: must not be negative")
        if field not in WITHOUT_END:
            mistakes.no_size.append(mistakes.wrong[-1])
    elif any(item != size for item in of_layers):
        message = f"{key} = {show(value)}: not supported (allowed: the same for all layers)"
        mistakes.unsupported.append(message)
    return {field: size}


def of_cases(cases: list[Case], key: str, value, mistakes: Mistakes) -> dict:
    for case in cases:
        if type(case.value) is type(value) and case.value == value:
            return case.fields
    allowed = ", ".join(show(case.value) for case in cases)
    # Without fields the cases are those of `supported`; the class may have others of their type.
    may_be = any(not case.fields and type(case.value) is type(value) for case in cases)
    messages = mistakes.unsupported if may_be else mistakes.wrong
    messages.append(f"{key} = {show(value)}: not supported (allowed: {allowed})")
    return {}


def of_expressions(values: dict) -> dict:
    """Return the values of keys as expressions read them: exact numbers, and tuples for lists."""
    exact = {key: tuple(x) if isinstance(x, list) else x for key, x in values.items()}
    floats = {key: x for key, x in values.items() if isinstance(x, float) and math.isfinite(x)}
    return exact | {key: Fraction(repr(x)) for key, x in floats.items()}


def plain(value):
    if not isinstance(value, Fraction):
        return value
    return int(value) if value.denominator == 1 else float(value)
