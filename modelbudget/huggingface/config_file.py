"""Reading of a config.json as downloaded from a model page: its family and fields."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text
from modelbudget.common.mistakes import show
from modelbudget.huggingface import bounded, translate
from modelbudget.huggingface.classes import translations


class Configured(NamedTuple):
    """Family and fields of a file; `kind` is its `transformers` class if there is a formula."""

    family: str
    fields: dict[str, Any]
    kind: str | None


def read(path: Path) -> Configured:
    """Read a config.json. Raises InputError with everything that is wrong or not supported."""
    config = _load(path)
    try:
        kind = translate.known_class(config)
        if kind:
            return Configured(translations()[kind].family, translate.fields_of(kind, config), kind)
        return Configured("hugging-face", bounded.fields_of(config), None)
    except ValueError as error:
        raise InputError([f"{path}: {line}" for line in str(error).splitlines()]) from None
    except RecursionError:
        raise InputError([f"{path}: nested too deep"]) from None


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_text(path), object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError) as error:
        raise InputError([f"{path}: not readable as UTF-8 JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise InputError([f"{path}: contains {type(config).__name__}, allowed: keys with values"])
    if not isinstance(config.get("model_type"), str):
        given = show(config["model_type"]) if "model_type" in config else "missing"
        raise InputError([f"{path}: model_type: {given}; allowed: a name such as llama or gpt2"])
    classes = config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError([f"{path}: architectures = {show(classes)}: must be a list of classes"])
    return config


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(k for k in keys if keys.count(k) > 1)!r}")
    for key, value in pairs:
        values = value if isinstance(value, list) else [value]
        if any(isinstance(one, float) and math.isnan(one) for one in values):
            raise ValueError(f"{key} = NaN: must be a number")
    return found
