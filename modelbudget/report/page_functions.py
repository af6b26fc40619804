"""Conditions, messages and rules of fields as functions of the page's script.

A page whose policy forbids to evaluate texts has them as a script, whose hash the policy has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.evaluators import vega_constraints
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.expressions import Expression
from modelbudget.families.decoder import Decoder

SWITCHES = [
    name
    for record in (Decoder, RunConfig)
    for name, field in record.model_fields.items()
    if field.annotation is bool
]

_CALLED = "ceil,count,floor,format,indexof,join,max,min,pow,round,slice,split"
"""What expressions in Vega's syntax call, of which the page has no Vega when it needs them."""


@dataclass(frozen=True)
class Function:
    """A function of the values of some names, in Vega's syntax, which is that of scripts."""

    names: tuple[str, ...]
    text: str


def of_expression(text: str | Expression) -> Function:
    """Return the function that computes an expression."""
    expression = Expression(text) if isinstance(text, str) else text
    text = vega_constraints.expression_in_vega(expression)
    return Function(tuple(sorted(expression.names)), text)


def mistakes(constraints: Sequence[Constraint]) -> Function:
    """Return the function of the messages of constraints, each empty where its constraint holds."""
    names = {name for constraint in constraints for name in constraint.names}
    texts = (vega_constraints.mistake(constraint, SWITCHES) for constraint in constraints)
    return Function(tuple(sorted(names)), f"[{','.join(texts)}]")


def script(functions: Iterable[Function]) -> str:
    """Return a script with these functions as the list FUNCTIONS, after `formulas.js`."""
    texts = (f"({{{','.join(of.names)}}})=>{of.text}" for of in functions)
    return f"const FUNCTIONS=(({{{_CALLED}}})=>[{','.join(texts)}])(CALLED);\n"
