"""Bounded reading of JSON: depth, numbers and keys are checked as well as syntax."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelbudget.common.errors import InputError
from modelbudget.common.files import MAX_BYTES, must_be_mapping, read_text

MAX_DIGITS = 100


def parse_json(
    text: str,
    read_object: Callable[[list[tuple[str, Any]]], Any] | None = None,
    constants: bool = False,
) -> Any:
    """Return the value in a text of JSON; `read_object` makes a value of the pairs of an object.

    Raises ValueError for wrong syntax, a key that an object has twice, more levels than Python
    reads, integers of more than `MAX_DIGITS` digits, numbers too large for a float, and Infinity
    and NaN unless `constants` are allowed.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=read_object or each_key_once,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=float if constants else _no_constant,
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def load_json(path: Path, most: int = MAX_BYTES, **how: Any) -> dict[str, Any]:
    """Return the object in a file of at most `most` bytes; `how`: arguments of `parse_json`.

    Raises InputError for anything else.
    """
    try:
        return must_be_mapping(parse_json(read_text(path, most), **how), path)
    except ValueError as error:
        raise InputError([f"{path}: not readable as UTF-8 JSON: {error}"]) from None


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError if it has a key twice."""
    read = dict(pairs)
    if len(read) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"duplicate key {twice!r}")
    return read


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits; allowed: up to {MAX_DIGITS}")
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:MAX_DIGITS]}: a number too large")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name}: not a number of JSON")
