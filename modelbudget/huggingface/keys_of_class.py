"""Keys of a config.json as the class itself reads them, and changes of some of them.

Does not import transformers.
"""

import re
from collections.abc import Mapping
from typing import Any

_CODE = re.compile(r"auto_map|trust_remote_code|use_kernels?|kernel_config|\w*_implementation\w*")
"""Keys that name external code: modules of a model page, kernels of a hub."""


def without_code(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys without those that name external code, in nested parts too."""
    return {
        key: without_code(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not _CODE.fullmatch(key)
    }


def stretch(config: dict[str, Any], before: int | None, n_layer: int) -> None:
    """Repeat or cut lists with an entry for each layer to the new number of layers."""
    for key, value in config.items():
        if isinstance(value, list) and value and len(value) == before:
            config[key] = (value * -(-n_layer // len(value)))[:n_layer]


def changed(
    file: dict[str, Any], before: dict[str, Any], after: dict[str, Any], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Return a file's keys with those that differ between `before` and `after`, as in `after`.

    All other keys stay as written. Other spellings (`aliases`: spelling → key) of a key that
    changes are removed.
    """
    changes = _differences(before, after)
    spellings = {spelling for spelling, key in aliases.items() if _has(changes, key)}
    return _merged(_without(file, spellings), changes)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    different = {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := _differences(old, value):
                different[key] = inner
        elif key not in before or old != value:
            different[key] = value
    return different


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _has(config: dict[str, Any], path: str) -> bool:
    first, _, inner = path.partition(".")
    if first not in config or not inner:
        return first in config
    return isinstance(config[first], dict) and _has(config[first], inner)


def _without(config: dict[str, Any], paths: set[str]) -> dict[str, Any]:
    inner: dict[str, set[str]] = {}
    for path in paths:
        first, _, last = path.partition(".")
        inner.setdefault(first, set()).add(last)
    return {
        key: _without(value, inner[key]) if key in inner and isinstance(value, dict) else value
        for key, value in config.items()
        if "" not in inner.get(key, ())
    }
