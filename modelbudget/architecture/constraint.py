"""Constraints as data: which values of fields go together, and the message where they do not."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from string import Formatter
from typing import Any, NamedTuple

from modelbudget.common.expressions import Expression

NOT_KNOWN = ": not known yet with "
_WORD = re.compile(r"[a-z]\w*")
Check = Callable[[Mapping[str, Any]], str | None]
"""From the values of fields to the mistake in them, or None."""


class Inserted(NamedTuple):
    """An expression in a message, and whether its thousands are set apart by commas."""

    expression: Expression
    commas: bool


class Constraint:
    """A condition on fields, as an expression; with `when`, only where that holds.

    In the message, braces hold expressions over fields: `{n_head}`, `{n_ctx:,}` with commas.
    """

    def __init__(self, holds: str, message: str, when: str = ""):
        self.text = f"not ({when}) or ({holds})" if when else holds
        self.template = message

    # Hundreds are defined when the library is imported, and few are read: each is parsed when used.
    @cached_property
    def holds(self) -> Expression:
        """The condition."""
        return Expression(self.text)

    @cached_property
    def message(self) -> list[str | Inserted]:
        """The parts of the message."""
        parts: list[str | Inserted] = []
        for text, inserted, spec, _ in Formatter().parse(self.template):
            parts.append(text)
            if inserted is not None:
                parts.append(Inserted(Expression(inserted), spec == ","))
        return parts

    @cached_property
    def words(self) -> frozenset[str]:
        """The names of fields that the condition reads, and words of its texts."""
        return frozenset(_WORD.findall(self.text))

    def __call__(self, values: Mapping[str, Any]) -> str | None:
        """Return the message if the constraint does not hold."""
        if self.holds(values):
            return None
        return "".join(
            part if isinstance(part, str) else shown(part.expression(values), part.commas)
            for part in self.message
        )

    def __str__(self):
        return self.text

    @property
    def names(self) -> frozenset[str]:
        """The fields that it reads."""
        inserted = (part.expression.names for part in self.message if isinstance(part, Inserted))
        return self.holds.names.union(*inserted)


def shown(value, commas: bool = False) -> str:
    """Return a value as messages write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if commas else str(value)


def may_read(check: Check, fields: frozenset[str]) -> bool:
    """Whether a check may read one of some fields: one that is no expression may read any."""
    return not isinstance(check, Constraint) or not check.words.isdisjoint(fields)


def first_mistake(checks: Iterable[Check], values: Mapping[str, Any]) -> str | None:
    """Return the first mistake, if there is one: of a setting, all that it is not known with.

    Those are read from the message, `SETTING: not known yet with zero: 3; allowed: 0`.
    """
    checks = iter(checks)
    for check in checks:
        if mistake := check(values):
            head, known, _ = _template(check).partition(NOT_KNOWN)
            same = (of for of in checks if known and _template(of).startswith(head + known))
            more = (other.partition(NOT_KNOWN)[2] for of in same if (other := of(values)))
            return "; nor with ".join([mistake, *more])
    return None


def _template(check: Check) -> str:
    return check.template if isinstance(check, Constraint) else ""


def check_all(checks: Iterable[Check], values: Mapping[str, Any]) -> None:
    """Raise ValueError with the first mistake, if there is one."""
    if mistake := first_mistake(checks, values):
        raise ValueError(mistake)
