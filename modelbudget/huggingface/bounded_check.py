"""Checks of a config.json without a formula, in a process with bounded memory and time.

A config may make a `transformers` class allocate or compute without end. The process imports
transformers once, which takes seconds, and runs all checks; the calling process does not import it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from modelbudget.architecture.base import Architecture

if TYPE_CHECKING:
    from modelbudget.common.workers import Helper

TIMEOUT_S = 60
"""Time limit of one check; the first one includes the import."""
BOUND = 2**30, "the check of a config.json"


def end() -> None:
    """End the process; the next check starts another."""
    _helper(os.getpid()).end()


@cache  # several points and sweeps may have the same record
def refusal(a: Architecture) -> str | None:
    """Return why the class of a record rejects its config; None if it does not."""
    try:
        return ask("check", a)
    except ValueError as error:
        return str(error)


def ask(question: str, about: Any) -> Any:
    """Return what a function of `unknown_class.py` returns. Raises ValueError."""
    from modelbudget.common.workers import Failure  # most processes check nothing

    answer = _helper(os.getpid())((question, about))
    if isinstance(answer, Failure):
        raise ValueError(f"its config cannot be built by transformers: {answer.reason}")
    value, refusal = answer
    if refusal is not None:
        raise ValueError(refusal)
    return value


@cache
def _helper(process: int) -> Helper:
    """Start the worker of the process with this id: a forked process needs its own."""
    from modelbudget.common.workers import Bound, Helper

    return Helper(_answer, TIMEOUT_S, Bound(*BOUND))


def _answer(task: tuple[str, Any]) -> tuple[Any, str | None]:
    """Return the value, or None and the reason why it is rejected."""
    from modelbudget.huggingface import unknown_class

    question, about = task
    try:
        return getattr(unknown_class, question)(about), None
    except ValueError as error:
        return None, str(error)
