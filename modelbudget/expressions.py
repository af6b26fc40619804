"""Expressions in sweep files: `d_ff: 4 * d_model`, `d_model % n_head = 0`.

Evaluated by simpleeval, never by Python's eval, in exact arithmetic: `d_model / n_head` is a
fraction, so whether it is a whole number is not a matter of rounding.
"""

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

import simpleeval

_MAX_BITS = 1000
"""Numbers of sweeps have 64. Beyond this, products of products could fill the memory."""


def _bounded(operation: Callable) -> Callable:
    """The operation on numbers alone, as long as they stay within bounds: 'a' * 10**9 is text."""

    def on_numbers(x, y):
        for number in (x, y):
            if not isinstance(number, int | Fraction):
                raise TypeError(f"{number!r} is not a number")
        result = operation(x, y)
        if max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS:
            raise OverflowError(f"a number of more than {_MAX_BITS} bits")
        return result

    return on_numbers


_OPERATORS = {
    ast.Add: _bounded(operator.add),
    ast.Sub: _bounded(operator.sub),
    ast.Mult: _bounded(operator.mul),
    ast.Div: _bounded(lambda x, y: Fraction(x) / Fraction(y)),
    ast.FloorDiv: _bounded(operator.floordiv),
    ast.Mod: _bounded(operator.mod),
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS = {
    "ceil": math.ceil,
    "floor": math.floor,
    "round": lambda x: round(x),  # to whole numbers: to 10**9 digits would take all memory
    "min": min,
    "max": max,
}
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.Call,
    ast.Name, ast.Load, ast.Constant, *_OPERATORS,
)  # fmt: skip
_ALLOWED = f"+ - * / // % ( ), comparisons, and or not, {', '.join(_FUNCTIONS)}"
_SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")
_MAX_LENGTH = 500


class Expression:
    """A checked expression over named numbers. Raises ValueError when it is not one."""

    def __init__(self, text: str):
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"{len(text)} characters long; at most {_MAX_LENGTH} are allowed")
        self.text = text
        try:
            self._tree = ast.parse(_SINGLE_EQUALS.sub("==", text).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"{text!r} is not an expression; allowed: {_ALLOWED}") from None
        for node in ast.walk(self._tree):
            if not isinstance(node, _NODES):
                raise ValueError(
                    f"{text!r} uses {type(node).__name__.lower()}; allowed: {_ALLOWED}"
                )
            if isinstance(node, ast.Constant):
                node.value = _exact(node.value)
        called = {ast.unparse(n.func) for n in ast.walk(self._tree) if isinstance(n, ast.Call)}
        for name in sorted(called - _FUNCTIONS.keys()):
            raise ValueError(f"{text!r} calls {name!r}; allowed: {_ALLOWED}")
        self.names = {n.id for n in ast.walk(self._tree) if isinstance(n, ast.Name)} - called
        self._evaluator = simpleeval.SimpleEval(_OPERATORS, _FUNCTIONS)

    def __call__(self, values: dict):
        """The value, exact. Raises ValueError naming the numbers put in when there is none."""
        self._evaluator.names = values
        try:
            return self._evaluator.eval(self.text, previously_parsed=self._tree.body)
        except ZeroDivisionError:
            raise ValueError(f"{self.text!r} divides by zero{self._with(values)}") from None
        except RecursionError:
            raise ValueError(f"{self.text!r} is nested too deep") from None
        except (simpleeval.InvalidExpression, TypeError, ArithmeticError) as error:
            raise ValueError(f"{self.text!r} has no value{self._with(values)}: {error}") from None

    def _with(self, values: dict) -> str:
        used = ", ".join(f"{name} = {values[name]}" for name in sorted(self.names & values.keys()))
        return f" with {used}" if used else ""


def _exact(value):
    """A constant of an expression, floats as the fractions that they are written as."""
    if isinstance(value, float) and math.isfinite(value):
        return Fraction(repr(value))
    if isinstance(value, str | None) or (
        isinstance(value, int) and value.bit_length() <= _MAX_BITS
    ):
        return value
    raise ValueError(f"{value!r}: not a number that is allowed here")
