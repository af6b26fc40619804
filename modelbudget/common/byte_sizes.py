"""Sizes in bytes as people write them: 24GB, 24GiB."""

import re
from decimal import Decimal

UNITS = {"bytes": 1} | {
    f"{prefix}{i}B": base**power
    for i, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("KMGT", 1)
}
GB, GIB = UNITS["GB"], UNITS["GiB"]
AS_GIVEN = "as given"
"""The source of a size that a user gives."""
EXAMPLES = "a size such as 24GB or 24GiB"


def size(text: str) -> int | None:
    """Return a size in bytes; None if the text is none. 24GB is 24 · 10⁹, 24GiB is 24 · 2³⁰."""
    written = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([KMGT]?I?B)\s*", str(text).upper())
    if written is None:
        return None
    number, unit = written.groups()
    return int(Decimal(number.replace("_", "")) * UNITS.get(unit.replace("I", "i"), 1))
