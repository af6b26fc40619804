"""Formulas as mathematics: SymPy expressions, shown as MathML."""

from types import SimpleNamespace

import sympy
from sympy.printing.mathml import mathml

from modelbudget.operations import ceil_div, positive


def namespace(family, words: dict[str, str], fixed: dict | None = None) -> SimpleNamespace:
    """One symbol for each size and switch of a family, except those `fixed` to a value.

    Fixing switches (tied, gated, …) leaves the formula of one kind of model.
    """
    sizes = {name: sympy.Symbol(name) for name in family.sizes()}
    sizes |= {name: int(value) for name, value in (fixed or {}).items()}
    return SimpleNamespace(**sizes, **words)


def to_mathml(expression) -> str:
    """Presentation MathML of an expression; browsers draw it without a script."""
    body = mathml(sympy.sympify(expression), printer="presentation")
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML">{body}</math>'


@ceil_div.register(sympy.Basic)
def _(x, y):
    return sympy.ceiling(x / sympy.sympify(y))


@positive.register(sympy.Basic)
def _(x):
    return sympy.Piecewise((1, x > 0), (0, True))
