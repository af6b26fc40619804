"""Keys of a config.json as the class itself reads them, and changes of some of them.

Does not import transformers.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

Path = tuple[str, ...]
"""Keys of nested parts, the outermost first."""
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
    changes = dict(_differences(before, after))
    config = deepcopy(file)
    for spelling, key in aliases.items():
        path = tuple(key.split("."))
        if any(changed_path[: len(path)] == path for changed_path in changes):
            _remove(config, spelling)
    for (*outer, last), value in changes.items():
        place = config
        for key in outer:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[last] = value
    return config


def _differences(
    before: dict[str, Any], after: dict[str, Any], path: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Yield each value of `after` that `before` has not, with its path."""
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict):
            yield from _differences(old if isinstance(old, dict) else {}, value, (*path, key))
        elif key not in before or old != value:
            yield (*path, key), value


def _remove(config: Any, path: str) -> None:
    *outer, last = path.split(".")
    for key in outer:
        config = config.get(key) if isinstance(config, dict) else None
    if isinstance(config, dict):
        config.pop(last, None)
