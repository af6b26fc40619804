"""Constraints as data: which values of fields go together, and the message where they do not."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from string import Formatter
from typing import Any, NamedTuple

from modelbudget.common.expressions import Expression

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

    def __call__(self, values: Mapping[str, Any]) -> str | None:
        """Return the message if the constraint does not hold."""
        if self.holds(values):
            return None
        return "".join(
            part if isinstance(part, str) else _shown(part.expression(values), part.commas)
            for part in self.message
        )

    def __str__(self):
        return self.text

    @property
    def names(self) -> frozenset[str]:
        """The fields that it reads."""
        inserted = (part.expression.names for part in self.message if isinstance(part, Inserted))
        return self.holds.names.union(*inserted)


ALONE: dict[str, tuple] = {
    "master_weights": (False,),
    "zero": (0,),
    "gradient_buckets": ("none",),
    "pipeline_schedule": ("none",),
    "tensor_parallel": (1,),
    "context_parallel": (1,),
    "expert_parallel": (1,),
}
"""Values of a run on one device whose parameters have no copy of higher precision."""


def known_only_with(given: str, when: str, **allowed: tuple) -> list[Constraint]:
    """Return a constraint for each field whose values are known with a setting.

    `given`: what a message calls the setting; `when`: the condition that it is on; `allowed`: the
    values of other fields that have formulas and modules with it.
    """
    return [
        Constraint(
            f"not {name}" if values == (False,) else f"{name} in {values}",
            f"{given}: not known yet with {name}: {{{name}}}; allowed: "
            f"{' or '.join(_shown(value, False) for value in values)}",
            when=when,
        )
        for name, values in allowed.items()
    ]


def _shown(value, commas: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if commas else str(value)


def first_mistake(checks: Iterable[Check], values: Mapping[str, Any]) -> str | None:
    """Return the first mistake that a check finds, if any does."""
    for check in checks:
        if mistake := check(values):
            return mistake
    return None


def check_all(checks: Iterable[Check], values: Mapping[str, Any]) -> None:
    """Raise ValueError with the first mistake, if there is one."""
    if mistake := first_mistake(checks, values):
        raise ValueError(mistake)
