"""What is predicted of one architecture and run, or the reason why nothing is."""

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Terms
from modelbudget.predict.formula import formula
from modelbudget.predict.of_program import without_program
from modelbudget.sweeps.check_quantities import undefined
from modelbudget.sweeps.quantised import refused

NO_FORMULA = "no formula covers it"
MEASURED = "`modelbudget measure` measures it"


def why_not(quantity: str, architecture: Architecture, run: RunConfig) -> str | None:
    """Return why a quantity has no prediction, None if it has one."""
    if mistake := undefined((quantity,), architecture, run):
        return mistake
    if reason := refused(run, {quantity}, architecture.can_quantise(run.weights)).get(quantity):
        return reason
    if formula(type(architecture), quantity, architecture, run)[1]:
        return None
    reason = without_program(quantity, architecture, run)
    return f"{NO_FORMULA}{f' ({reason})' if reason else ''}; {MEASURED}"


def predicted(quantity: str, architecture: Architecture, run: RunConfig) -> Terms:
    """Return the terms of a quantity. Raises ValueError with the reason if it has none."""
    if why := why_not(quantity, architecture, run):
        raise ValueError(f"{quantity}: {why}")
    return formula(type(architecture), quantity, architecture, run)[0]
