"""Arguments of the public functions: wrong ones are one line with the name and what is allowed."""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show

MOST_DEVICES = 2**20
"""Five times the largest cluster for which a run was published."""
Function = TypeVar("Function", bound=Callable[..., Any])


class Argument(NamedTuple):
    """Values that an argument may have, and how a message describes them."""

    allows: Callable[[Any], bool]
    allowed: str

    @property
    def or_none(self) -> "Argument":
        """The argument that may be None, too."""
        return Argument(
            lambda value: value is None or self.allows(value), f"{self.allowed} or None"
        )


def whole_number(least: int, most: int) -> Argument:
    """Return the argument that is a whole number within bounds."""
    return Argument(
        lambda value: type(value) is int and least <= value <= most,
        f"a whole number from {least:,} to {most:,}",
    )


def one_of(class_: type) -> Argument:
    """Return the argument that is of a class."""
    return Argument(lambda value: isinstance(value, class_), f"a {class_.__name__}")


def _is_texts(value: Any) -> bool:
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_collection and all(isinstance(item, str) for item in value)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value)


TEXT = Argument(lambda value: isinstance(value, str), "text")
TEXTS = Argument(_is_texts, "a list of texts")
EACH_TEXT = Argument(_is_texts, "texts")
"""For an argument that takes any number of texts."""
BOOLEAN = Argument(lambda value: isinstance(value, bool), "true or false")
PATH = Argument(_is_path, "a path")
NAME = Argument(_is_path, "a name or a path")
USUAL = {
    "settings": Argument(
        lambda v: isinstance(v, RunConfig) or (isinstance(v, Mapping) and _is_texts([*v])),
        "a RunConfig, keys with values,",
    ).or_none,
    "quantities": TEXTS,
    "devices": whole_number(1, MOST_DEVICES),
    "reserve": Argument(
        lambda value: isinstance(value, str) or whole_number(0, MAX_COUNT).allows(value),
        "bytes, a size such as 2GiB,",
    ).or_none,
    **dict.fromkeys(("accelerators", "mmproj"), PATH.or_none),
    "answer": Argument(
        lambda value: type(value) is int and value > 0, "a number of tokens"
    ).or_none,
    "engine_share": Argument(
        lambda value: type(value) in (int, float) and 0 < value < 1, "a number between 0 and 1,"
    ).or_none,
    "gguf": Argument(TEXT.allows, "a format of llama.cpp,").or_none,
    **dict.fromkeys(("accelerator", "component", "name", "quantity"), TEXT),
    **dict.fromkeys(("draft", "reference", "reward"), NAME.or_none),
    **dict.fromkeys(("engine_sleeps", "imatrix", "training"), BOOLEAN),
}
"""By the name that they have in all functions but those that say otherwise."""


def checked(**unusual: Argument) -> Callable[[Function], Function]:
    """Check arguments by name before a function runs. Its errors are InputError.

    `unusual`: those that are not what `USUAL` says.
    """

    def wrap(function: Function) -> Function:
        signature = inspect.signature(function)
        known = USUAL | unusual
        arguments = {name: known[name] for name in signature.parameters if name in known}

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                allowed = ", ".join(f"{name}: {a.allowed}" for name, a in arguments.items())
                raise InputError([f"{function.__name__}(): {error} ({allowed})"]) from None
            mistakes = [
                f"{function.__name__}(): {name} = {show(bound[name])}: allowed: {argument.allowed}"
                for name, argument in arguments.items()
                if name in bound and not argument.allows(bound[name])
            ]
            if mistakes:
                raise InputError(mistakes)
            return function(*args, **kwargs)

        return call  # pyrefly: ignore[bad-return]

    return wrap
