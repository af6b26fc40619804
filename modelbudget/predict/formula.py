"""The formula of a quantity. Imports neither tables nor torch."""

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.terms import Terms


def formula(family: type[Architecture], quantity: str, a, r) -> tuple[Terms, object]:
    """Return the terms of a quantity, and where they hold: 1, 0 or a column of both."""
    if quantity == "parameters":
        return family.parameters(a), int(family.has_formula)
    holds = family.has_formula_for(quantity, a, r)
    if isinstance(holds, int) and not holds:
        return {}, 0
    return family.terms(quantity, a, r), holds
