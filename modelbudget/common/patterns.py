"""Patterns of names that others write: those that take a short time to match."""

import re

LONGEST, MAX_REPEATED, MANY_NAMES = 200, 3, 5000
"""Characters of a pattern, and parts that may be repeated, one less for more names than these."""


def is_quick(pattern: str, n_name: int = 0) -> bool:
    """Whether a pattern takes a short time for so many names: it repeats little, and no group."""
    n_repeated = sum(map(pattern.count, "*+{"))
    most = MAX_REPEATED - (n_name > MANY_NAMES)
    return len(pattern) <= LONGEST and n_repeated <= most and not re.search(r"\)[*+{]", pattern)


def checked_pattern(pattern: str) -> str:
    """Return a pattern. Raises ValueError if it is none, or may take hours."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no pattern: {error}") from None
    if not is_quick(pattern):
        allowed = f"at most {LONGEST} characters, and {MAX_REPEATED} of * + {{ after no group"
        raise ValueError(f"may take hours to match; allowed: {allowed}")
    return pattern
