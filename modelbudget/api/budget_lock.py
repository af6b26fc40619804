"""A budget file: what models had when they were locked, and what has changed since."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget import __version__
from modelbudget.api.model import Model, model_with
from modelbudget.api.predictions import QUANTITIES
from modelbudget.architecture.terms import Term, of_model
from modelbudget.catalogue.implementations import OURS
from modelbudget.common import user_code
from modelbudget.common.bounded_json import parse_json
from modelbudget.common.errors import InputError
from modelbudget.common.files import read_text, write
from modelbudget.common.printable import markdown_table

LOCK = Path("budget.lock")
COUNTED = ("parameters", "parameter_bytes")
TOTAL = "total"
"""The component of a change of a whole model."""

Values = dict[str, dict[str, int]]
"""Quantity → component → value."""


class ChangedValue(NamedTuple):
    """One component of one quantity whose value is not the locked one; None: there is none."""

    model: str
    quantity: str
    component: str
    locked: int | None
    now: int | None

    @property
    def difference(self) -> int:
        """The value now minus the locked one."""
        return (self.now or 0) - (self.locked or 0)


def values_of(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Values]:
    """Return what each model has: predicted, or, without a formula, counted on its real module.

    Raises InputError with the reasons of all models that could not be counted.
    """
    values: dict[str, Values] = {}
    to_count: dict[str, Model] = {}
    for name in names:
        model = model_with(name, settings, {})
        predicted = model.predictions(QUANTITIES, {"implementation": OURS} | settings)
        values[name] = {
            quantity: {part.name: part.value for part in of.components}
            for quantity, of in predicted.breakdowns.items()
        }
        if "parameters" not in predicted.breakdowns:
            to_count[name] = model
    return values | (_counted(to_count, settings) if to_count else {})


def _counted(models: dict[str, Model], settings: dict[str, Any]) -> dict[str, Values]:
    """Count real modules, all in one pool of processes."""
    from modelbudget.api.measuring import measure_models

    user_code.allow([name for name in models if ":" in name])
    pairs = [model.with_run(settings) for model in models.values()]
    results = dict(zip(models, measure_models(pairs, COUNTED, os.cpu_count() or 1), strict=True))
    missing = {name: result.missing for name, result in results.items() if result.missing}
    if missing:
        raise InputError([f"{name}: {next(iter(why.values()))}" for name, why in missing.items()])
    return {
        name: {quantity: dict(result.values[quantity]) for quantity in COUNTED}
        for name, result in results.items()
    }


def lock(names: Sequence[str], settings: dict[str, Any], path: Path = LOCK) -> None:
    """Write the budgets of models in one run. Raises InputError."""
    if os.path.isdir(path):
        raise InputError([f"{path}: a folder; allowed: a file to write"])
    content = {
        "made_by": f"modelbudget {__version__}",
        "settings": settings,
        "models": values_of(names, settings),
    }
    try:
        write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        reason = f"{error.strerror}; allowed: a file to write"
        raise InputError([f"{path}: {reason}"]) from None


def check(path: Path = LOCK, module: str | None = None, totals: bool = False) -> list[ChangedValue]:
    """Return what has changed since a budget was locked; of `totals`, only of whole models.

    A budget of a function's module runs its code, and only if `module` is its name, or the part of
    it before the colon. Raises InputError if it is another, or if the file is no budget.
    """
    settings, locked = _read(path)
    for name in locked:
        if ":" in name and module not in (name, name.partition(":")[0]):
            allowed = f"is code, which only the command line allows to run: `module={name}`"
            raise InputError([f"{path}: models: {name!r}: {allowed}"])
    now = values_of(list(locked), settings)
    return [
        change
        for name, values in locked.items()
        for change in (of_totals if totals else changes)(name, values, now[name])
    ]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Values]]:
    try:
        content = parse_json(read_text(path))
        locked = {
            str(name): {q: {c: int(v) for c, v in of.items()} for q, of in values.items()}
            for name, values in content["models"].items()
        }
        if not locked:
            raise ValueError("models: empty; allowed: at least one")
        return dict(content["settings"]), locked
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"not a budget ({type(error).__name__}: {error})"
        raise InputError([f"{path}: {reason}; make one: modelbudget lock MODEL"]) from None


def changes(name: str, locked: Values, now: Values) -> list[ChangedValue]:
    """Return every component whose value differs, in the order of quantities and components."""
    return [
        ChangedValue(name, quantity, component, was, is_now)
        for quantity in sorted(locked.keys() | now.keys())
        for component in sorted(locked.get(quantity, {}).keys() | now.get(quantity, {}).keys())
        if (was := locked.get(quantity, {}).get(component))
        != (is_now := now.get(quantity, {}).get(component))
    ]


def of_totals(name: str, locked: Values, now: Values) -> list[ChangedValue]:
    """Return the quantities whose value for the whole model differs."""
    totals = [
        {
            quantity: {TOTAL: of_model(quantity, {c: Term(v) for c, v in of.items()})}
            for quantity, of in values.items()
        }
        for values in (locked, now)
    ]
    return changes(name, *totals)


def table(differences: list[ChangedValue]) -> str:
    """Format changes as a table of GitHub's Markdown, with names of models if there are several."""
    several = len({change.model for change in differences}) > 1
    texts = ["model"] * several + ["quantity", "component"]
    rows = [
        (
            *([change.model] if several else []),
            change.quantity,
            change.component,
            *("none" if value is None else f"{value:,}" for value in (change.locked, change.now)),
            f"{change.difference:+,}",
        )
        for change in differences
    ]
    return markdown_table((*texts, "locked", "now", "difference"), rows, texts)
