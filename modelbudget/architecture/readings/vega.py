"""Formulas as Vega expressions, which a browser evaluates for the calculator."""

import operator
import re
from functools import cache
from types import SimpleNamespace

from modelbudget.architecture.operations import ceil_div, largest_of, positive

LONGEST = 60
"""Letters of an expression that is repeated where it is used; a longer one gets a name."""
EXACT_BELOW = 2**53
"""JavaScript reads larger whole numbers inexactly."""

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def namespace(family, categories: dict[str, str]) -> SimpleNamespace:
    """One Vega signal for each size and switch of a family (1 is yes, 0 is no); text as given."""
    return SimpleNamespace(**{name: _expression(name) for name in family.numeric()}, **categories)


class Expression:
    """A signal by its name, an operation on expressions and numbers, or a function of some."""

    __slots__ = ("operands", "operation")

    def __init__(self, operation: str, operands: tuple):
        self.operation, self.operands = operation, operands

    def __add__(self, other):
        return _expression("+", self, other)

    def __radd__(self, other):
        return _expression("+", other, self)

    def __sub__(self, other):
        return _expression("-", self, other)

    def __rsub__(self, other):
        return _expression("-", other, self)

    def __mul__(self, other):
        return _expression("*", self, other)

    def __rmul__(self, other):
        return _expression("*", other, self)

    def __neg__(self):
        return _expression("-", self)


@cache
def _expression(operation: str, *operands) -> Expression:
    """Equal expressions are one object: each is written out once, however many formulas use it."""
    return Expression(operation, operands)


class Dataflow:
    """Formulas as signals e0, e1, …: each expression once, and none of them long.

    A running sum of fifty terms, each used again, would be a formula of a thousand terms.
    """

    def __init__(self):
        self.expressions: dict[str, int] = {}
        self._texts: dict[Expression, str] = {}
        self._sizes: dict[str, set[str]] = {}

    def signal(self, value) -> str:
        """Return the name of the signal that holds a value, an expression or a number."""
        text = self.text(value)
        return text if re.fullmatch(r"e\d+", text) else self._name(text)

    def text(self, value) -> str:
        """Return the value in Vega's expression syntax, with long subexpressions as signals."""
        if not isinstance(value, Expression):
            return str(int(value))
        if value not in self._texts:
            text = self._text(value)
            self._texts[value] = self._name(text) if len(text) > LONGEST else text
        return self._texts[value]

    def sizes(self, value) -> set[str]:
        """Return the sizes and switches that a value depends on."""
        return self._sizes_in(self.text(value))

    def _name(self, text: str) -> str:
        name = f"e{self.expressions.setdefault(text, len(self.expressions))}"
        if name not in self._sizes:
            self._sizes[name] = self._sizes_in(text)
        return name

    def _sizes_in(self, text: str) -> set[str]:
        names = re.findall(r"\b[a-z]\w*\b(?!\()", text)  # without functions, which a ( follows
        return set().union(*(self._sizes.get(name, {name}) for name in names))

    def _text(self, value: Expression) -> str:
        operation, operands = value.operation, [self.text(one) for one in value.operands]
        if not operands:
            return operation
        if operation.isalpha():
            return f"{operation}({','.join(operands)})"
        if len(operands) == 1:
            return f"({operation}{operands[0]})"
        return _simplest(operands[0], operation, operands[1])


def _simplest(left: str, op: str, right: str) -> str:
    """Simplify by constants: most optional parts are absent from a model."""
    if op in _ARITHMETIC and left.isdecimal() and right.isdecimal():
        return str(_ARITHMETIC[op](int(left), int(right)))
    if op == "*" and "0" in (left, right):
        return "0"
    if (op == "*" and left == "1") or (op == "+" and left == "0"):
        return right
    if (op == "*" and right == "1") or (op in "+-" and right == "0"):
        return left
    return f"({left}{op}{right})"


@ceil_div.register
def _(x: Expression, y):
    return _expression("ceil", _expression("/", x, y))


@positive.register
def _(x: Expression):
    return _expression("if", _expression(">", x, 0), 1, 0)


@largest_of.register
def _(*values: Expression):
    return _expression("max", *values)
