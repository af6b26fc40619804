"""Keys of a config.json as the class itself reads them, and changes of some of them.

Does not import transformers.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import shared_keys

Path = tuple[str, ...]
"""Keys of nested parts, the outermost first."""
_CODE = re.compile(r"auto_map|trust_remote_code|use_kernels?|kernel_config|\w*_implementation\w*")
"""Keys that name external code: modules of a model page, kernels of a hub."""
MOST = 2**40
_LIMITS = {
    re.compile(r"\w*(layers?|blocks?|depths?|stages?|repeats?|num_layers_\w+)"): 10_000,
    re.compile(r"\w*experts?"): 1_000_000,
    re.compile(r"d_\w+|\w*_(size|dim)"): 2**24,
}
"""Numbers of modules and of experts, which make a class slow to build, and widths. All else may be
larger: frequencies of RoPE, seeds, rows of a table of n-grams.
"""
_OF_ALL_CLASSES = re.compile(
    r"(vocab|hidden)_size|d_model|n_(embd|layer|head)|num_(hidden_layers|attention_heads)"
)
"""Sizes that no class accepts below 0. Others may be -1, as those of windows."""


def without_code(config: dict[str, Any]) -> dict[str, Any]:
    """Return the keys without those that name external code, in nested parts too."""
    return {
        key: without_code(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not _CODE.fullmatch(key)
    }


def impossible_sizes(config: dict[str, Any]) -> Iterator[str]:
    """Yield a mistake for each size that is negative, or too large to build on any machine."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from (f"{key}.{line}" for line in impossible_sizes(value))
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            yield from impossible_sizes({f"{key}[{i}]": item for i, item in enumerate(value)})
        elif not any(pattern.fullmatch(key) for pattern in shared_keys().ignored):
            most = next((n for keys, n in _LIMITS.items() if keys.fullmatch(key)), MOST)
            values = value if isinstance(value, list) else [value]
            sizes = [size for size in values if isinstance(size, int)]
            if sizes and max(sizes) > most:
                yield f"{key} = {show(value)}: must be at most {most:,}"
            elif sizes and min(sizes) < 0 and _OF_ALL_CLASSES.fullmatch(key):
                yield f"{key} = {show(value)}: must not be negative"


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
