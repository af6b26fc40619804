"""Rules of which settings of a run go together, from `configs/run_constraints.yaml`."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from modelbudget.architecture.constraint import NOT_KNOWN, Constraint, shown
from modelbudget.architecture.stored_formats import IN_SHARDS
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

GROUPS = {"formats in shards": IN_SHARDS}
"""Lists of values that a rule has by name."""


@cache
def content() -> dict[str, list]:
    """Read the file."""
    return load_yaml(CONFIGS / "run_constraints.yaml")


@cache
def rules(section: str) -> list[Constraint]:
    """Return the rules of a section of the file, which says what each may have."""
    return [constraint for rule in content()[section] for constraint in _constraints(**rule)]


def _constraints(when: str = "", **rule: Any) -> Iterator[Constraint]:
    if "holds" in rule:
        yield Constraint(rule["holds"], rule["message"], when)
    for name, values in rule.get("known_with", {}).items():
        allowed = tuple(known for value in values for known in GROUPS.get(value, (value,)))
        yield Constraint(
            f"not {name}" if allowed == (False,) else f"{name} in {allowed}",
            f"{rule['setting']}{NOT_KNOWN}{name}: {{{name}}}; allowed: "
            f"{' or '.join(map(shown, allowed))}",
            when,
        )
    offered = f"; allowed: {rule['allowed']}" if "allowed" in rule else ""
    for name, holds in rule.get("not_known_with", {}).items():
        yield Constraint(holds, f"{rule['setting']}{NOT_KNOWN}{name}{offered}", when)
