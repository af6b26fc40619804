"""Quantities of one of several devices that share a model: by formula, by program, measured."""

from helpers.gloo import QUANTITIES
from helpers.training import without_zeros
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.predict.by_program import quantities

COMPARED = (*sorted(QUANTITIES), "parameter_bytes", "flops_forward", "flops_backward")


def predicted(a: Decoder, run: RunConfig) -> dict[str, dict[str, int]]:
    """Return the quantities that have a formula; with another measured one, no dict is equal."""
    return {
        quantity: without_zeros(
            {name: term.total for name, term in getattr(a, quantity)(a, run).items()}
        )
        for quantity in COMPARED
        if a.has_formula_for(quantity, a, run)
    }


def programmed(a: Decoder, run: RunConfig) -> dict[str, dict[str, int]]:
    """Return the same quantities of a run of the program."""
    by_quantity = quantities("training", a, run)
    known = [quantity for quantity in COMPARED if quantity in by_quantity]
    return {quantity: without_zeros({**by_quantity[quantity]}) for quantity in known}


def measured(a: Decoder, run: RunConfig) -> dict[str, dict[str, int]]:
    """Return all quantities of a device of a fake process group."""
    _, values = of_rank(a, run, QUANTITIES)
    return compared(values)


def compared(values: dict) -> dict[str, dict[str, int]]:
    """Return the quantities that are compared, without zeros."""
    return {quantity: without_zeros(values[quantity]) for quantity in COMPARED}
