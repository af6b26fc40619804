"""A budget file: what a model had when it was locked, and what has changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget import __version__
from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text, replacing

LOCK = Path("budget.lock")
COUNTED = ("parameters", "parameter_bytes")

Values = dict[str, dict[str, int]]
"""Quantity → component → value."""


class Change(NamedTuple):
    """One component of one quantity whose value is not the locked one; None: there is none."""

    quantity: str
    component: str
    locked: int | None
    now: int | None

    @property
    def difference(self) -> int:
        """The value now minus the locked one."""
        return (self.now or 0) - (self.locked or 0)


def values_of(name: str, settings: dict[str, Any]) -> Values:
    """Return what a model has: predicted, or, without a formula, counted on its real module."""
    from modelbudget.api.model import QUANTITIES, model

    found = model(name)
    predicted = found.predictions(QUANTITIES, settings)
    if "parameters" in predicted.breakdowns:
        return {
            quantity: {part.name: part.value for part in one.components}
            for quantity, one in predicted.breakdowns.items()
        }
    compared = found.measure(settings, COUNTED)
    if compared.failed:
        raise InputError([f"{name}: {reason}" for reason in compared.failed])
    values: Values = {}
    for row in compared.table.iter_rows(named=True):
        values.setdefault(row["quantity"], {})[row["component"]] = row["measured"]
    return values


def lock(name: str, settings: dict[str, Any], path: Path = LOCK) -> None:
    """Write the budget of a model."""
    content = {
        "made_by": f"modelbudget {__version__}",
        "model": name,
        "settings": settings,
        "budget": values_of(name, settings),
    }
    with replacing(path) as new:
        new.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check(path: Path = LOCK, module: str | None = None) -> list[Change]:
    """Return what has changed since a budget was locked.

    A budget of a function's module runs its code, and only if `module` is its name. Raises
    InputError if it is another, or if the file is no budget.
    """
    try:
        content = json.loads(read_text(path))
        name, settings, locked = (content[key] for key in ("model", "settings", "budget"))
        locked = {q: {c: int(v) for c, v in parts.items()} for q, parts in locked.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            [f"{path}: not a budget ({error}); make one: modelbudget lock MODEL"]
        ) from None
    if ":" in name and name != module:
        allowed = f"is code, which only the command line allows to run: --module {name}"
        raise InputError([f"{path}: model = {name!r}: {allowed}"])
    return changes(locked, values_of(name, settings))


def changes(locked: Values, now: Values) -> list[Change]:
    """Return every component whose value differs, in the order of quantities and components."""
    return [
        Change(quantity, component, was, is_now)
        for quantity in sorted(locked.keys() | now.keys())
        for component in sorted(locked.get(quantity, {}).keys() | now.get(quantity, {}).keys())
        if (was := locked.get(quantity, {}).get(component))
        != (is_now := now.get(quantity, {}).get(component))
    ]


def table(found: list[Change]) -> str:
    """Format changes as a table of GitHub's Markdown."""
    shown = [
        (
            one.quantity,
            one.component,
            *("none" if v is None else f"{v:,}" for v in one[2:]),
            f"{one.difference:+,}",
        )
        for one in found
    ]
    head = ("quantity", "component", "locked", "now", "difference")
    lines = ["| " + " | ".join(row) + " |" for row in (head, *shown)]
    return "\n".join([lines[0], "| --- | --- | --: | --: | --: |", *lines[1:]])
