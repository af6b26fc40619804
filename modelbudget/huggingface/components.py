"""Parts of `transformers` classes and the components of ours that correspond to them."""

import re
from functools import cache, lru_cache

from modelbudget.common.files import load_yaml
from modelbudget.huggingface.classes import FOLDER

LONGEST = 200
"""Characters of a path that is looked up: classes have no longer ones, and time is quadratic."""


STACK = re.compile(r"(?:.*\.)?((?:en|de)coder)\.(.*)")


def components_of_class(path: str) -> tuple[str, ...]:
    """Return our components that correspond to a part of a class; a model has at most one of them.

    A part of a decoder behind an encoder (BART) may have the path of one without (OPT).
    """
    if _first("other_inputs", path):
        return ()
    names = [_first("components", path)]
    if stack := STACK.fullmatch(path[:LONGEST]):
        name = _first("of_a_stack", stack[2])
        names.insert(0, name and f"{stack[1]}.{name}")
    return tuple(filter(None, names))


def group_of_class(path: str) -> str:
    """Return the group of components to which a part of a class belongs in charts."""
    return _first("groups", path) or "other"


def is_buffer(path: str) -> bool:
    """Whether a tensor of a checkpoint is a buffer of its class, not a parameter."""
    return _first("buffers", path) is not None


@lru_cache(2**12)  # layers have the same paths
def _first(section: str, path: str) -> str | None:
    if len(path) > LONGEST:
        return None
    fits = (component for pattern, component in _patterns()[section] if pattern.fullmatch(path))
    return next(fits, None)


@cache
def _patterns() -> dict[str, list[tuple[re.Pattern, str]]]:
    sections = load_yaml(FOLDER / "components.yaml")
    return {
        section: [(re.compile(pattern), component) for pattern, component in lines.items()]
        for section, lines in sections.items()
    }
