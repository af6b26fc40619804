"""Formulas as mathematics: SymPy expressions, shown as MathML."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import sympy
from sympy.printing.mathml import MathMLPresentationPrinter

from modelbudget.architecture.arithmetic import ceil_div, largest_of, positive
from modelbudget.architecture.terms import Term

CONDITIONS = sympy.Piecewise, sympy.Heaviside
"""What `positive` is, of a term and of a sum of terms with conditions."""


def namespace(family, categories: dict[str, str], fixed: dict | None = None) -> SimpleNamespace:
    """One symbol for each size and switch of a family, except those `fixed` to a value.

    Fixing switches (tied, gated, …) leaves the formula of one kind of model.
    """
    sizes = {name: sympy.Symbol(name, integer=True) for name in family.numeric()}
    sizes |= {name: int(value) for name, value in (fixed or {}).items()}
    return SimpleNamespace(**sizes, **categories)


def of_values(family, values: dict, varying=()) -> SimpleNamespace:
    """Return the symbols of a kind of model or run, which its categories and switches decide.

    Those of `varying` stay symbols.
    """
    categories = {name: values[name] for name in family.categorical()}
    fixed = {name: n for name, n in settled(family, values).items() if name not in varying}
    return namespace(family, categories, fixed)


def answered(expression, values: dict[str, int]):
    """Replace each condition (`positive`) of an expression by its value for the given sizes."""
    return sympy.sympify(expression).replace(
        lambda part: isinstance(part, CONDITIONS),
        lambda part: part.subs({symbol: values[symbol.name] for symbol in part.free_symbols}),
    )


def settled(family, values: dict[str, int]) -> dict[str, int]:
    """Return the values that determine which parts a model has, for `fixed`.

    These are the switches, and the sizes left at a default of 0 (no such part) or 1 (no such
    effect).
    """
    fields = family.model_fields
    return {
        name: values[name]
        for name in family.numeric()
        if fields[name].annotation is bool
        or (values[name] in (0, 1) and values[name] == fields[name].default)
    }


def to_mathml(term: Term, values: dict[str, int] | None = None) -> str:
    """Presentation MathML of a term, instances × each; browsers draw it without a script.

    With `values`, each symbol is drawn as its number: the same formula with the numbers put in.
    """
    return _drawn(*map(sympy.sympify, term), tuple((values or {}).items()))


@cache  # models of many groups have equal terms
def _drawn(each: sympy.Expr, instances: sympy.Expr, values: tuple[tuple[str, int], ...]) -> str:
    printer = _Printer(dict(values))
    if instances == 1:
        body = printer.doprint(each).removeprefix("<mrow>").removesuffix("</mrow>")
    else:
        body = "<mo>×</mo>".join(_factor(printer, part) for part in (instances, each))
    return f"<math>{body.replace('&#xB7;', '·')}</math>"  # as a row; the entity is longer


def _factor(printer: MathMLPresentationPrinter, part: sympy.Expr) -> str:
    body = printer.doprint(part)
    return f"<mrow><mo>(</mo>{body}<mo>)</mo></mrow>" if part.is_Add else body


class _Printer(MathMLPresentationPrinter):
    """`n_kv_head` as one identifier, n with the subscript kv head; products with a dot."""

    dom: Any

    def __init__(self, values: dict[str, int]):
        super().__init__({"mul_symbol": "dot"})
        self.values = values

    def _print_Symbol(self, symbol, style="plain"):  # noqa: N802  SymPy finds it by this name
        if symbol.name in self.values:
            return self._leaf("mn", f"{self.values[symbol.name]:,}")
        letter, _, rest = symbol.name.partition("_")
        if not rest:
            return self._leaf("mi", letter)
        both = self.dom.createElement("msub")
        both.appendChild(self._leaf("mi", letter))
        both.appendChild(self._leaf("mi", rest.replace("_", " ")))
        return both

    def _as_ordered_terms(self, expr, order=None):
        """Order the terms of a sum: positive terms first, then negative ones."""
        terms = super()._as_ordered_terms(expr, order)  # pyrefly: ignore[missing-attribute]
        return sorted(terms, key=lambda term: term.could_extract_minus_sign())

    def _leaf(self, tag: str, text: str):
        element = self.dom.createElement(tag)
        element.appendChild(self.dom.createTextNode(text))
        return element


@ceil_div.register(sympy.Basic)
def _(x, y):
    return x if y == 1 else sympy.ceiling(x / sympy.sympify(y))  # sizes are whole numbers


@positive.register(sympy.Basic)
def _(x):
    if x.has(sympy.Piecewise):  # Piecewise would combine n of them in 2^n cases
        return sympy.Heaviside(x, 0)
    return sympy.Piecewise((1, x > 0), (0, True))


@largest_of.register(sympy.Basic)
def _(*values):
    # To compare hundreds of long sums in pairs, as evaluation would, takes minutes.
    return sympy.Max(*values, evaluate=False)
