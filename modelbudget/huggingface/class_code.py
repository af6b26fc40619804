"""The code of `transformers` classes, read without importing it, which takes seconds."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OF_ALL_CLASSES = (
    "cache_utils.py", "masking_utils.py", "modeling_rope_utils.py", "utils/generic.py",
    "utils/output_capturing.py",
)  # fmt: skip
"""Files of the package that compute in a forward pass of any class; not every version has all."""
READ = re.compile(r'(?:config\.|(?:config|self),\s*"|(?:config|kwargs)\.\w+\(")(\w+)')
"""A key that such a file reads."""


def keys_in_code(class_name: str, keys: Iterable[str]) -> list[str]:
    """Return those of some keys that a class may read.

    They are mentioned in its code or that of its config, or read for all classes. All of them if
    the package is not installed or has no such class.
    """
    code = _code(class_name)
    if code is None:
        return [*keys]
    of_all = _keys_of_all_classes()
    return [key for key in keys if key in of_all or re.search(rf"\b{re.escape(key)}\b", code)]


@cache
def _code(class_name: str) -> str | None:
    """Return the text of the file that defines a class, and of its config next to it."""
    package = _package()
    definition = f"\nclass {class_name}(".encode()
    for path in package.glob("models/*/modeling_*.py") if package else ():
        code = path.read_bytes()
        if definition in code:
            config = path.with_name(path.name.replace("modeling", "configuration"))
            return (code + config.read_bytes()).decode()
    return None


@cache
def _keys_of_all_classes() -> set[str]:
    package = _package()
    assert package is not None
    files = filter(Path.is_file, (package / name for name in OF_ALL_CLASSES))
    return {key for file in files for key in READ.findall(file.read_text(encoding="utf-8"))}


def _package() -> Path | None:
    package = find_spec("transformers")
    return Path(package.origin).parent if package and package.origin else None
