"""The formula of a quantity. Imports neither tables nor torch."""

from copy import copy

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_CACHE
from modelbudget.architecture.terms import Terms
from modelbudget.predict.cache_bytes import is_of_engine, terms_of_engine


def formula(family: type[Architecture], quantity: str, a, r) -> tuple[Terms, object]:
    """Return the terms of a quantity, and where they hold: 1, 0 or a column of both.

    Of one model, where no closed formula holds, by its program; caches of engines by their layout.
    """
    if quantity in OF_CACHE:
        r = r if quantity == "cache_bytes" else _of_one_sequence(r)
        if is_of_engine(r):
            try:
                return (terms_of_engine(a, r), 1) if isinstance(a, Architecture) else ({}, 0)
            except ValueError:
                return {}, 0
        quantity = "cache_bytes"
    if quantity == "parameters":
        return family.parameters(a), int(family.has_formula)
    holds = family.has_formula_for(quantity, a, r)
    if isinstance(holds, int) and not holds:
        # With the operations of programs, which most models do not need.
        from modelbudget.predict.by_program import terms_by_program

        terms = terms_by_program(quantity, a, r) if isinstance(a, Architecture) else None
        return ({}, 0) if terms is None else (terms, 1)
    return family.terms(quantity, a, r), holds


def _of_one_sequence(r):
    """Return a run, or a reading of one, with one sequence."""
    if isinstance(r, RunConfig):
        return r.model_copy(update={"batch": 1})
    reading = copy(r)
    reading.batch = 1
    return reading
