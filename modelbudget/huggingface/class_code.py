"""The code of `transformers` classes, read without importing it, which takes seconds."""

import re
from importlib.util import find_spec
from pathlib import Path


def keys_in_code(class_name: str, keys: list[str]) -> list[str]:
    """Return those of some keys that the code of a class, or of its config, mentions.

    All of them if the package is not installed or has no such class.
    """
    code = _code(class_name) if keys else None
    if code is None:
        return keys
    return [key for key in keys if re.search(rf"\b{re.escape(key)}\b", code)]


def _code(class_name: str) -> str | None:
    """Return the text of the file that defines a class, and of its config next to it."""
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return None
    definition = f"\nclass {class_name}(".encode()
    for path in Path(package.origin).parent.glob("models/*/modeling_*.py"):
        code = path.read_bytes()
        if definition in code:
            config = path.with_name(path.name.replace("modeling", "configuration"))
            return (code + config.read_bytes()).decode()
    return None
