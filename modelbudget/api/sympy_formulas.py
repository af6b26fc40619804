"""Formulas of a model's components as SymPy expressions."""

import sympy

from modelbudget.api.chosen_model import ChosenModel
from modelbudget.api.predictions import why_not
from modelbudget.architecture.evaluators import symbols
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import offered
from modelbudget.predict.formula import formula


def of_component(model: ChosenModel, component: str, quantity: str) -> sympy.Expr:
    """Return the formula of all instances of a component over the symbols of the sizes.

    Switches and categories, such as `tied`, have the model's values. Raises InputError.
    """
    if why := why_not(model, quantity):
        raise InputError([f"{model.name}: {quantity}: {why}"])
    architecture, run = model.with_run()
    spaces = [symbols.of_values(type(of), of.model_dump()) for of in (architecture, run)]
    terms, _ = formula(type(architecture), quantity, *spaces)
    if component not in terms:
        raise InputError(
            [f"{model.name}: {component}: no such component{offered(component, terms, '')}"]
        )
    return symbols.answered(terms[component].total, architecture.model_dump() | run.model_dump())
