"""The code of `transformers` classes, read without importing it, which takes seconds."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import shared_keys, translations

OF_ALL_CLASSES = (
    "cache_utils.py", "masking_utils.py", "modeling_rope_utils.py", "utils/generic.py",
    "utils/output_capturing.py",
)  # fmt: skip
"""Files of the package that compute in a forward pass of any class; not every version has all."""
READ = re.compile(r'(?:config\.|(?:config|self),\s*"|(?:config|kwargs)\.\w+\(")(\w+)')
"""A key that such a file reads."""

TASKS = (
    "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_MASKED_LM", "MODEL",
)  # fmt: skip
"""Names of the tables with the class of each model_type for a task, language models first."""
MODEL_TYPES = "python -c 'from transformers import CONFIG_MAPPING as m; print(*m.keys())'"
"""Prints every model type. `len(CONFIG_MAPPING)` is 0, since its entries are loaded lazily."""


def class_of(config: dict[str, Any]) -> str:
    """Return the class that a config names, or without one a language model of its model_type.

    Raises ValueError for a model_type or a class that the installed package has not.
    """
    model_type, names = config["model_type"], config.get("architectures") or []
    known, types = classes_of(model_type), _tables()[0]
    if model_type not in types and not known:
        named = offered(model_type, types, MODEL_TYPES)
        if what := shared_keys().unread_types.get(model_type):
            named = f": {what}"
        code = "; the code that auto_map names is never run" if "auto_map" in config else ""
        raise ValueError(
            f"model_type = {show(model_type)}: not one of transformers "
            f"{version('transformers')}{code}{named}"
        )
    if not (names or known):
        raise ValueError(
            f"model_type = {show(model_type)}: no language model by default; name the class in "
            "architectures"
        )
    name, *_ = *names, *known
    if _code(name) is None:
        refusal = f"architectures[0] = {show(name)}: not a model class of transformers"
        raise ValueError(f"{refusal}{offered(name, known, '')}")
    return name


def classes_of(model_type: str) -> list[str]:
    """Return the classes of a model_type: those with a formula, and the usual ones of the package.

    The first of the package is a language model if it has one.
    """
    known = [name for name, of in translations().items() if of.model_type == model_type]
    usual = [table[model_type] for table in _tables()[1] if model_type in table]
    return [*dict.fromkeys([*known, *usual])]


@cache
def _tables() -> tuple[list[str], list[dict[str, str]]]:
    """Return every model_type, and for each task its classes by model_type; nothing without files.

    A model_type is a key of a table that names its config.
    """
    folder = (folder_of_package() or Path()) / "models" / "auto"
    files = (
        folder / f"{name}.py" for name in ("auto_mappings", "configuration_auto", "modeling_auto")
    )
    *of_configs, code = (
        path.read_text(encoding="utf-8") if path.is_file() else "" for path in files
    )
    types = re.findall(r'(?<!\[)"([\w.-]+)"[,:]\s*"\w+Config"', "".join(of_configs))
    tables = (
        re.search(rf"^{task}_MAPPING_NAMES = OrderedDict\((.*?)^\)", code, re.S | re.M)
        for task in TASKS
    )
    rows = re.compile(r'\(\s*"([\w.-]+)",\s*"(\w+)",?\s*\)')
    return types, [dict(rows.findall(table[1])) for table in tables if table]


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
    """Return the text of the file that gives a class to others, and of its config next to it."""
    package = folder_of_package()
    definition, name = f"\nclass {class_name}(".encode(), f'"{class_name}"'.encode()
    for path in package.glob("models/*/modeling_*.py") if package else ():
        code = path.read_bytes()
        if definition in code and name in code:
            config = path.with_name(path.name.replace("modeling", "configuration"))
            return (code + config.read_bytes()).decode()
    return None


@cache
def _keys_of_all_classes() -> set[str]:
    package = folder_of_package()
    assert package is not None
    files = filter(Path.is_file, (package / name for name in OF_ALL_CLASSES))
    return {key for file in files for key in READ.findall(file.read_text(encoding="utf-8"))}


def folder_of_package() -> Path | None:
    """Return the folder of transformers; None if it is not installed."""
    package = find_spec("transformers")
    return Path(package.origin).parent if package and package.origin else None
