"""Numbers and fields as a reader reads them."""

import re

from modelbudget.families import families

UNITS = {"parameters": "parameters", "parameter_bytes": "bytes"}


def count(value: int) -> str:
    """540356474880 → 540,356,474,880."""
    return f"{value:,}"


def percent(share: float) -> str:
    """A share with as many digits as tell it from nothing and from all."""
    hundredths = 100 * share
    if 0 < hundredths < 0.01:
        return "< 0.01 %"
    if 99.99 < hundredths < 100:
        return "> 99.99 %"
    digits = 2 if hundredths < 1 or 99.9 < hundredths < 100 else 1
    return "100 %" if share == 1 else "0 %" if share == 0 else f"{hundredths:.{digits}f} %"


def value_of(field: str, value) -> str:
    """One value of a field, as a panel's title: `n_vocab = 50,257`, `tied`, `not tied`."""
    if isinstance(value, bool):
        return field if value else f"not {field}"
    return f"{field} = {count(value) if isinstance(value, int) else value}"


def field_title(field: str) -> str:
    """The field with the first words of its own description: `n_layer: layers`."""
    for family in families().values():
        info = family.model_fields.get(field)
        if info is not None and info.description:
            return f"{field}: {re.split(r'[,:;(]', info.description)[0].strip()}"
    return field
