"""Messages from pydantic's errors: the key, the value and what is allowed."""

import json
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ValidationError

from modelbudget.common.number_format import counted
from modelbudget.common.suggestions import MAX_LISTED, offered, unknown_field, without_setting

MAX_DESCRIBED = 100
SCHEMA = "workflow/schemas/sweep.schema.json"
"""Lists every key of a sweep and every field, with its meaning."""
FIELDS = "docs/fields.md"
"""Lists every field, with its values."""
_PLAIN = ("bool", "int", "str")
_MESSAGES = {
    "missing": "missing; it must be given",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be keys with values",
    "model_type": "must be keys with values",
    "model_attributes_type": "must be keys with values",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}

FIRST_KEYS, FIRST_VALUES = 8, 20
"""How many keys of a file, or values of a field, are named for one that is like none of them."""


def describe(
    error: ValidationError,
    allowed_keys=(),
    hidden=(),
    within: str = "",
    rest: str = SCHEMA,
    keep: Callable[[Any], bool] = lambda mistake: True,
) -> list[str]:
    """Return one line for each mistake: `grid.n_vocab[2] = -5: must be at least 1`.

    `allowed_keys` are suggested for an unknown key; all of them are listed in `rest`. Of a model's
    fields, a value of another type is refused with the meaning of its field. Parts of the path in
    `hidden` are left out, and `within` precedes it. Errors that `keep` rejects are left out.
    """
    errors = filter(keep, error.errors(include_url=False)[:MAX_DESCRIBED])
    # Without duplicates: a union reports an error for each of its types.
    return list(
        dict.fromkeys(_line(mistake, allowed_keys, hidden, within, rest) for mistake in errors)
    )


def _line(error: Any, allowed_keys, hidden, within: str, rest: str) -> str:
    path = within + "".join(_step(part) for part in error["loc"] if part not in hidden)
    path = path.removeprefix(".")
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        n_first = FIRST_KEYS if len(error["loc"]) == 1 else 0
        allowed = offered(name, dict.fromkeys(allowed_keys), rest, n_first) if allowed_keys else ""
        return f"{path}: unknown key{allowed}"
    if error["type"] == "missing":
        return f"{path}: {_MESSAGES['missing']}"
    if error["type"] == "value_error" and not path:
        return str(error["ctx"]["error"])
    value = show(error["input"])
    if error["loc"] and error["loc"][-1] in hidden and error["loc"][-1] in _PLAIN:
        return f"{path} = {value}: must be a whole number, true or false, or text"
    return f"{path} = {value}: {_allowed(error, allowed_keys)}{_meaning(error, allowed_keys)}"


def _meaning(error: Any, fields: Any) -> str:
    """Return what a field means whose value has another type, in parentheses."""
    if not error["loc"] or error["type"] not in _MESSAGES or not isinstance(fields, Mapping):
        return ""
    description = getattr(fields.get(error["loc"][-1]), "description", None)
    return f" ({first_clause(description)})" if description else ""


def first_clause(description: str) -> str:
    """Return the first clause of a field's description.

    A single word before a colon is skipped: it names the component that needs the field.
    """
    clauses = description.split(": ")
    clause = next((clause for clause in clauses if " " in clause), clauses[0])
    return re.split(r"[,;(]", clause)[0].strip()


def _step(part: int | str) -> str:
    """Format a step of a path: `.n_vocab`, `[2]`. Other names are quoted to show their spaces."""
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if re.fullmatch(r"[\w-]{1,60}", part) else f".{show(part)}"


def _allowed(error: Any, fields: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "literal_error":
        is_field = isinstance(fields, Mapping) and any(n in fields for n in error["loc"][-1:])
        return _one_of(error, FIELDS if is_field else SCHEMA)
    text = (
        _MESSAGES.get(error["type"]) or _bound(error) or error["msg"][0].lower() + error["msg"][1:]
    )
    return text + _hint(error["input"]) if error["type"] in ("int_type", "float_type") else text


def _bound(error: dict) -> str | None:
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"must be at least {context['ge']:,}"
        case "less_than_equal":
            return f"must be at most {context['le']:,}"
        case "greater_than":
            return f"must be more than {context['gt']:,}"
        case "too_short" | "too_long":
            bound, key = ("least", "min") if error["type"] == "too_short" else ("most", "max")
            n = context[f"{key}_length"]
            return f"must have at {bound} {counted(n, 'item')}"
    return None


def _one_of(error: Any, rest: str) -> str:
    """Return what a value may be: one of a few, or of many that are all in `rest`."""
    expected = error["ctx"]["expected"]
    if len(expected) <= MAX_LISTED:
        return f"must be {expected}"
    known = re.findall(r"'([^']+)'", expected)
    if answer := without_setting(str(error["input"])):
        return f"no such value: {answer}"
    return f"unknown{offered(str(error['input']), known, rest, FIRST_VALUES)}"


def _hint(value) -> str:
    """Return the number to write instead of 1e5, which YAML reads as text."""
    if isinstance(value, str):
        try:
            number = float(value.replace("_", "").replace(",", ""))
        except ValueError:
            return ""
        if number.is_integer():
            return f", not text; write {int(number)}"
    return ""


def unknown_fields(values: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return a line for each name that is no field, with its value."""
    return [
        f"{name} = {show(value)}: {unknown_field(name, known, FIELDS)}"
        for name, value in values.items()
        if name not in known
    ]


def show(value) -> str:
    """Format a value as in a sweep file, shortened."""
    text = _short.repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


class _Short(reprlib.Repr):
    """Shortens long values without reading them whole."""

    def repr1(self, x: Any, level: int) -> str:
        is_word = x is None or isinstance(x, bool)
        return json.dumps(x) if is_word else super().repr1(x, level)


_short = _Short()
_short.maxstring = _short.maxother = _short.maxlong = 1000
_short.maxlist = _short.maxdict = 20
