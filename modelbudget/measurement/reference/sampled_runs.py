"""One run of each class and combination of settings."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import tokens


def sample(runs: Iterable[tuple[str, str, Mapping[str, Any], RunConfig]]) -> set[str]:
    """Return the keys of the runs with most tokens of those that differ only in numbers.

    Takes the key, the class, its config and the run of each. Whether a number is 0 is a setting.
    """
    chosen: dict[Hashable, tuple[int, str]] = {}
    for key, class_name, config, run in runs:
        settings = class_name, _settings(config), _settings(run.model_dump())
        if settings not in chosen or tokens(run) > chosen[settings][0]:
            chosen[settings] = tokens(run), key
    return {key for _, key in chosen.values()}


def _settings(value: Any) -> Hashable:
    """Return a value with `True` for numbers other than 0; of a list, its distinct elements."""
    if isinstance(value, Mapping):
        return frozenset((name, _settings(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return frozenset(map(_settings, value))
    return bool(value) if isinstance(value, int | float) else value
