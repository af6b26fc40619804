"""Formulas as Vega expressions: what a browser computes behind a slider."""

import operator
import re
from types import SimpleNamespace

import altair as alt
from altair.expr import core
from altair.expr.core import OperatorMixin

from modelbudget.operations import ceil_div, largest_of, positive

LONGEST = 60
"""Letters of an expression that is repeated where it is used; a longer one gets a name."""
EXACT_BELOW = 2**53
"""JavaScript reads larger whole numbers inexactly."""

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def namespace(family, words: dict[str, str]) -> SimpleNamespace:
    """One Vega signal for each size and switch of a family (yes is 1, no is 0); words as given."""
    sizes = {name: alt.param(name=name) for name in family.sizes()}
    return SimpleNamespace(**sizes, **words)


class Dataflow:
    """Formulas as signals e0, e1, …: each expression once, and none of them long.

    A running sum of fifty terms, each used again, would be a formula of a thousand terms.
    """

    def __init__(self):
        self.expressions: dict[str, int] = {}
        self._texts: dict[int, tuple[object, str]] = {}

    def signal(self, value) -> str:
        """The name of the signal that holds a value, an expression or a number."""
        text = self.text(value)
        return text if re.fullmatch(r"e\d+", text) else self._name(text)

    def text(self, value) -> str:
        """The value as Vega's parser takes it, in terms of other signals where it is long."""
        if isinstance(value, alt.ParameterExpression):
            value = value.expr
        if isinstance(value, alt.Parameter):
            return value.name
        if not isinstance(value, core.Expression):
            return str(int(value))
        if id(value) not in self._texts:  # kept, or another could come to its place in memory
            text = self._text(value)
            self._texts[id(value)] = value, self._name(text) if len(text) > LONGEST else text
        return self._texts[id(value)][1]

    def _name(self, text: str) -> str:
        return f"e{self.expressions.setdefault(text, len(self.expressions))}"

    def _text(self, value: core.Expression) -> str:
        if isinstance(value, core.FunctionExpression):
            return f"{value.name}({','.join(map(self.text, value.args))})"
        if isinstance(value, core.UnaryExpression):
            return f"({value.op}{self.text(value.val)})"
        return _simplest(self.text(value.lhs), value.op, self.text(value.rhs))


def _simplest(left: str, op: str, right: str) -> str:
    """Without what a word or a number decides: most parts that a model could have, it has not."""
    if op in _ARITHMETIC and left.isdecimal() and right.isdecimal():
        return str(_ARITHMETIC[op](int(left), int(right)))
    if op == "*" and "0" in (left, right):
        return "0"
    if (op == "*" and left == "1") or (op == "+" and left == "0"):
        return right
    if (op == "*" and right == "1") or (op in "+-" and right == "0"):
        return left
    return f"({left}{op}{right})"


@ceil_div.register(OperatorMixin)
def _(x, y):
    return alt.expr.ceil(x / y)


@positive.register(OperatorMixin)
def _(x):
    return alt.expr.if_(x > 0, 1, 0)


@largest_of.register(OperatorMixin)
def _(*values):
    return alt.expr.max(*values)
