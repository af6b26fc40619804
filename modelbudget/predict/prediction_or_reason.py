"""What is predicted of one architecture and run, or the reason why nothing is."""

from modelbudget.architecture.adapter_methods import why_not_run
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_CACHE
from modelbudget.architecture.terms import Terms
from modelbudget.operations.part import NotComputedError
from modelbudget.predict.cache_bytes import is_of_engine, terms_of_engine
from modelbudget.predict.formula import formula
from modelbudget.sweeps.check_quantities import undefined
from modelbudget.sweeps.not_with_quantised_weights import refused

NO_FORMULA = "no formula covers it"
MEASURED = "`modelbudget measure` measures it"


def why_not(quantity: str, architecture: Architecture, run: RunConfig) -> str | None:
    """Return why a quantity has no prediction, None if it has one."""
    return terms_or_reason(quantity, architecture, run)[1]


def predicted(quantity: str, architecture: Architecture, run: RunConfig) -> Terms:
    """Return the terms of a quantity. Raises ValueError with the reason if it has none."""
    terms, why = terms_or_reason(quantity, architecture, run)
    if why:
        raise ValueError(f"{quantity}: {why}")
    return terms


def terms_or_reason(
    quantity: str, architecture: Architecture, run: RunConfig
) -> tuple[Terms, str | None]:
    """Return the terms of a quantity, and why it has none; None if it has some."""
    if mistake := undefined((quantity,), architecture, run):
        return {}, mistake
    if reason := refused(architecture, run, {quantity}).get(quantity):
        return {}, reason
    terms, holds = formula(type(architecture), quantity, architecture, run)
    if holds:
        return terms, None
    if quantity in OF_CACHE and is_of_engine(run):
        try:
            terms_of_engine(architecture, run)
        except ValueError as why:
            return {}, str(why)
    from modelbudget.predict.by_program import without_program  # most models need no program

    error = without_program(quantity, architecture, run)
    reason = f" ({error})" if error and f"{error}" else ""
    is_computed = not isinstance(error, NotComputedError) and why_not_run(run) is None
    measured = f"; {MEASURED}" if is_computed else ""
    return {}, f"{NO_FORMULA}{reason}{measured}"
