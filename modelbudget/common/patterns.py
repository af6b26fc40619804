"""Patterns of names that others write: those that take a short time to match."""

import re

LONGEST, MOST = 200, 3
"""Characters of a pattern; groups in it, parts that may be left out, and repeated ones."""


def checked_pattern(pattern: str) -> str:
    """Return a pattern. Raises ValueError if it is none, or may take hours."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no pattern: {error}") from None
    counts = (sum(map(pattern.count, signs)) for signs in ("*+{", "?", "("))
    if len(pattern) > LONGEST or max(counts) > MOST or re.search(r"\)[*+{]", pattern):
        allowed = f"{LONGEST} characters, {MOST} groups, {MOST} of * + {{, and {MOST} of ?"
        raise ValueError(f"may take hours to match; allowed: no repeated group, at most {allowed}")
    return pattern
