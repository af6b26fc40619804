"""The formula of a quantity. Imports neither tables nor torch."""

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.terms import Terms
from modelbudget.predict.of_program import terms_by_program


def formula(family: type[Architecture], quantity: str, a, r) -> tuple[Terms, object]:
    """Return the terms of a quantity, and where they hold: 1, 0 or a column of both.

    Of one model, where no closed formula holds, by its program.
    """
    if quantity == "parameters":
        return family.parameters(a), int(family.has_formula)
    holds = family.has_formula_for(quantity, a, r)
    if isinstance(holds, int) and not holds:
        terms = terms_by_program(quantity, a, r) if isinstance(a, Architecture) else None
        return ({}, 0) if terms is None else (terms, 1)
    return family.terms(quantity, a, r), holds
