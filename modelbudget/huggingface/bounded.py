"""Questions to the classes of transformers about a config.json without a formula, answered in a
process with bounded memory and time: a config may make a class allocate or compute without end.

That process imports transformers once, which takes seconds, and answers all questions. The process
that asks imports nothing.
"""

import os
from functools import cache
from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.common.workers import Bound, Failure, Helper

TIMEOUT_S = 60
"""Of one answer; the first one includes the import."""
BOUND = Bound(2**30, "the check of a config.json")


def fields_of(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json as fields of the family `hugging-face`. Raises ValueError."""
    return _ask("fields_of", config)


def check(a: Architecture) -> None:
    """Raises ValueError where the class of a record does not accept its config."""
    if refusal := _refusal(a):
        raise ValueError(refusal)


def end() -> None:
    """End the process; the next question starts another."""
    _helper(os.getpid()).end()


@cache  # the same record may stand at several points, and in several sweeps
def _refusal(a: Architecture) -> str | None:
    try:
        return _ask("check", a)
    except ValueError as error:
        return str(error)


def _ask(question: str, about: Any) -> Any:
    answer = _helper(os.getpid())((question, about))
    if isinstance(answer, Failure):
        raise ValueError(f"its config cannot be built by transformers: {answer.reason}")
    value, refusal = answer
    if refusal is not None:
        raise ValueError(refusal)
    return value


@cache
def _helper(process: int) -> Helper:
    """Of the process with this id: a fork cannot share it with its parent."""
    return Helper(_answer, TIMEOUT_S, BOUND)


def _answer(asked: tuple[str, Any]) -> tuple[Any, str | None]:
    """The value, or why it is refused."""
    from modelbudget.huggingface import unknown

    question, about = asked
    try:
        return getattr(unknown, question)(about), None
    except ValueError as error:
        return None, str(error)
