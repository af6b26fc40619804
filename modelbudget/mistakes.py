"""Turning pydantic's errors into lines that name the key, the value and what is allowed."""

from pydantic import ValidationError

from modelbudget.errors import did_you_mean

_KINDS = {
    "missing": "missing; it must be given",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be keys with values",
    "model_type": "must be keys with values",
    "model_attributes_type": "must be keys with values",
    "float_type": "must be a number",
}


def describe(error: ValidationError, allowed_keys=(), hidden=(), within: str = "") -> list[str]:
    """One line for each mistake: `grid.n_vocab[2] = -5: must be at least 1`.

    `allowed_keys` are offered when a key is unknown; parts of the path in `hidden` are left out;
    `within` stands before it.
    """
    return [_line(one, allowed_keys, hidden, within) for one in error.errors(include_url=False)]


def _line(one: dict, allowed_keys, hidden, within: str) -> str:
    path = within + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in one["loc"]
        if part not in hidden
    )
    path = path.lstrip(".")
    if one["type"] == "extra_forbidden":
        name = str(one["loc"][-1])
        allowed = f" (allowed: {', '.join(allowed_keys)})" if allowed_keys else ""
        return f"{path}: unknown key{did_you_mean(name, allowed_keys)}{allowed}"
    if one["type"] == "missing":
        return f"{path}: {_KINDS['missing']}"
    if one["type"] == "value_error" and not path:
        return str(one["ctx"]["error"])
    value = show(one["input"])
    return f"{path} = {value}: {_allowed(one)}"


def _allowed(one: dict) -> str:
    if one["type"] == "value_error":
        return str(one["ctx"]["error"])
    text = _KINDS.get(one["type"]) or _bound(one) or one["msg"][0].lower() + one["msg"][1:]
    return text + _hint(one["input"])


def _bound(one: dict) -> str | None:
    context = one.get("ctx", {})
    match one["type"]:
        case "greater_than_equal":
            return f"must be at least {context['ge']:,}"
        case "less_than_equal":
            return f"must be at most {context['le']:,}"
        case "literal_error":
            return f"must be {context['expected']}"
    return None


def _hint(value) -> str:
    """YAML reads 1e5 as text; say what to write instead."""
    if isinstance(value, str):
        try:
            number = float(value.replace("_", "").replace(",", ""))
        except ValueError:
            return ""
        if number.is_integer():
            return f", not text; write {int(number)}"
    return ""


def show(value) -> str:
    """A value as a sweep file would hold it, shortened."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
