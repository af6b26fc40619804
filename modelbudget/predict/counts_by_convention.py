"""Counts of one model under every convention, and the FLOPs that are executed."""

from fractions import Fraction

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import CONVENTIONS
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import total
from modelbudget.predict import prediction_or_reason

OF_STEP = ("flops_forward", "flops_backward")


def counts(a: Architecture, run: RunConfig) -> dict[str, int]:
    """Return the count under every convention that applies, by name, from our formulas."""
    return {
        convention.name: total(convention.terms(type(a), a, run.length))
        for convention in CONVENTIONS
        if not convention.why_not(type(a))
    }


def executed(a: Architecture, run: RunConfig) -> Fraction | None:
    """Return the FLOPs per token of all matrix products of a training step.

    Traces of the module confirm the formula. None without one.
    """
    flops = [prediction_or_reason.terms_or_reason(quantity, a, run) for quantity in OF_STEP]
    if any(why for _, why in flops):
        return None
    return Fraction(sum(total(terms) for terms, _ in flops), tokens(run))


def relative_error(estimate: int, exact: int) -> float:
    """Return (estimate − exact) / exact."""
    return float(Fraction(estimate - exact, exact))
