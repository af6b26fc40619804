"""What all operations share: their name on the tape, and the casts of autocast."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Literal, TypeVar

from modelbudget.operations.tape import Active

Function = TypeVar("Function", bound=Callable)


def operation(
    function: Function | None = None, *, autocast: Literal["lower", "float32"] | None = None
) -> Function:
    """Name an operation on the tape.

    `autocast`: the dtype of its arguments under torch.autocast: the lower one (products), float32
    (norms, softmax, losses), or, if None, the one they have (autocast_mode.h, `AT_FORALL_…`).
    """
    if function is None:
        return lambda function: operation(function, autocast=autocast)  # pyrefly: ignore[bad-return]
    name = function.__name__.strip("_")

    @wraps(function)
    def run(*args, **kwargs):
        Active.tape.operation = name
        return function(*args, **kwargs)

    @wraps(function)
    def run_with_casts(*args, **kwargs):
        tape = Active.tape
        casts, tape.operation = tape.autocast, name
        if casts is None or casts.is_inside:
            return function(*args, **kwargs)
        dtype = casts.dtype if autocast == "lower" else "float32"
        # C++ evaluates arguments last to first.
        by_name = {key: casts.cast(value, dtype) for key, value in reversed(kwargs.items())}
        values = [casts.cast(value, dtype) for value in reversed(args)]
        casts.is_inside = True
        try:
            tape.operation = name
            return function(*reversed(values), **by_name)
        finally:
            casts.is_inside = False

    return run if autocast is None else run_with_casts  # pyrefly: ignore[bad-return]
