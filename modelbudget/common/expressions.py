"""Expressions over fields: `4 * d_model`, `d_model % n_head = 0`, `'mlp' in mlps`.

Sweep files hold them, and records hold their constraints in them. Each is parsed and checked once
and compiled to nested functions; Python's eval is never used. The arithmetic is exact:
`d_model / n_head` is a fraction, so rounding does not decide whether it is a whole number.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial, reduce
from typing import Annotated, Any

from pydantic import BeforeValidator

from modelbudget.common.number_format import counted
from modelbudget.common.validation_messages import show

TextOrNumber = Annotated[
    str, BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value)
]
"""An expression as a file has it: `d_model / 64`, or 2."""

_MAX_BITS = 1000
"""Numbers in sweeps have 64 bits. Without a limit, repeated products could fill the memory."""
_MAX_DEPTH = 300
"""Levels of nesting. Each is a nested function call, of which Python allows about 1,000."""

_Evaluate = Callable[[Mapping[str, Any]], Any]
"""Maps the values of all names to the value of a subexpression."""


def _bounded(operation: Callable) -> Callable:
    """Restrict an operation to numbers of at most `_MAX_BITS` bits; 'a' * 10**9 is rejected."""

    def on_numbers(x, y):
        if type(x) is int is type(y):  # the common case, several times faster than the general one
            result = operation(x, y)
            if type(result) is int and result.bit_length() <= _MAX_BITS:
                return result
        if getattr(x, "is_symbolic", False) or getattr(y, "is_symbolic", False):
            return operation(x, y)  # sizes of a program that is read with symbols
        for number in (x, y):
            if not isinstance(number, int | Fraction):
                raise TypeError(f"{show(number)} is not a number")
        result = operation(x, y)
        if max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS:
            raise OverflowError(f"a number of more than {_MAX_BITS} bits")
        return result

    return on_numbers


def _in(item, words: str | tuple) -> bool:
    """Whether an item is one of a tuple, or of the words of a text with spaces between them."""
    return item in _words(words)


def _count(word: str, text: str | tuple, number: int) -> int:
    """Count a word in the first words of a text that is repeated."""
    words = _words(text)
    times, more = divmod(number, len(words))
    return times * words.count(word) + words[:more].count(word)


def _place(word: str, text: str, number: int) -> int:
    """Return the index of a word in the first words of a text that is repeated, or their number."""
    words = _words(text)[:number]
    return words.index(word) if word in words else number


def _words(text: str | tuple) -> list[str]:
    if isinstance(text, tuple):
        return [*text]
    if not isinstance(text, str):
        raise TypeError(f"{show(text)} is not a text of words")
    return text.split()


def _exp2(x: int) -> int:
    """2 to the power of a whole number."""
    if not 0 <= x <= _MAX_BITS:
        raise OverflowError(f"exp2 takes 0 to {_MAX_BITS}")
    return 1 << x


_OPERATORS: dict[type[ast.AST], Callable] = {
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
    ast.In: _in,
    ast.NotIn: lambda item, words: not _in(item, words),
}
_FUNCTIONS = {
    "ceil": (math.ceil, 1),
    "floor": (math.floor, 1),
    "round": (round, 1),
    "min": (min, 2),
    "max": (max, 2),
    "exp2": (_exp2, 1),
    "digits": (lambda x: len(str(abs(int(x)))), 1),
    "first": (lambda text, number: " ".join(_words(text)[:number]), 2),
    "count": (_count, 3),
    "place": (_place, 3),
    "words": (lambda text: len(_words(text)), 1),
}
"""Name → function, and its number of values: of min and max the least."""
_ALLOWED = f"+ - * / // % ( ), comparisons, and or not, in, {', '.join(_FUNCTIONS)}"
_SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")
_MAX_LENGTH = 500


class Expression:
    """A checked expression over named values. Raises ValueError if the text is not one.

    `names` are the names that it reads, `tree` is its syntax tree.
    """

    def __init__(self, text: str):
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"{len(text)} characters long; at most {_MAX_LENGTH} are allowed")
        self.text = text
        shown = show(text)
        try:
            tree = ast.parse(_SINGLE_EQUALS.sub("==", text).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"{shown} is not an expression; allowed: {_ALLOWED}") from None
        self.tree = tree.body
        compiler = _Compiler(shown)
        try:
            self._evaluate = compiler.compiled(self.tree)
        except RecursionError:
            raise ValueError(f"{shown} is nested too deep") from None
        self.names = frozenset(compiler.names)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the exact value. Raises ValueError with the values used if there is none."""
        try:
            return self._evaluate(values)
        except ZeroDivisionError:
            raise ValueError(f"{show(self.text)} divides by zero{self._with(values)}") from None
        except KeyError as error:
            reason = f"{error.args[0]} is not set"
        except (TypeError, ArithmeticError) as error:
            reason = str(error)
        raise ValueError(f"{show(self.text)} has no value{self._with(values)}: {reason}")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return the value of a condition. Raises ValueError for a number or text, too."""
        value = self(values)
        if isinstance(value, bool):
            return value
        allowed = "a comparison, such as n_head % n_kv_head = 0"
        raise ValueError(f"{show(self.text)} is no condition; allowed: {allowed}")

    def _with(self, values: Mapping[str, Any]) -> str:
        names = sorted(self.names & values.keys())
        used = ", ".join(f"{name} = {_number(values[name])}" for name in names)
        return f" with {used}" if used else ""


@cache
def expression_of(text: str) -> Expression:
    return Expression(text)


class LazyValues(dict):
    """Values of names: known ones, and others, each read when an expression needs it."""

    def __init__(self, read: Callable[[str], Any], known: Mapping[str, Any] = {}):
        super().__init__(known)
        self._read = read

    def __missing__(self, name: str) -> Any:
        return self._read(name)


def _number(value) -> str:
    """Format a value; a fraction as 3/4."""
    return show(str(value)).strip("'")


def _exact(value) -> Any:
    """Return a constant as an exact number: 0.1 is 1/10. Raises ValueError for other constants."""
    if isinstance(value, float) and math.isfinite(value):
        return Fraction(repr(value))
    if isinstance(value, str | None) or (
        isinstance(value, int) and value.bit_length() <= _MAX_BITS
    ):
        return value
    raise ValueError(f"{show(value)}: not a number that is allowed here")


class _Compiler:
    """Compiles subexpressions to functions, and collects the names that they read.

    Raises ValueError for syntax that is not allowed, and RecursionError if nested too deep.
    """

    def __init__(self, shown: str):
        self.shown = shown
        self.names: set[str] = set()

    def compiled(self, node: ast.AST, depth: int = 0) -> _Evaluate:
        if depth > _MAX_DEPTH:
            raise RecursionError
        parts = partial(self._parts, depth + 1)
        match node:
            case ast.Constant():
                node.value = value = _exact(node.value)
                return lambda values: value
            case ast.Name(id="true" | "false" as word):  # as YAML writes them
                return self.compiled(ast.Constant(word == "true"))
            case ast.Name(id=name):
                self.names.add(name)
                return operator.itemgetter(name)
            case ast.UnaryOp(op=op, operand=operand):
                return _of_many(self._operator(op), parts(operand))
            case ast.BinOp(op=op, left=x, right=y):
                return _of_two(self._operator(op), *parts(x, y))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides = parts(left, *comparators)
                return reduce(_and, map(_of_two, map(self._operator, ops), sides, sides[1:]))
            case ast.BoolOp(op=op, values=operands):
                return reduce(_and if isinstance(op, ast.And) else _or, parts(*operands))
            case ast.Tuple(elts=items):
                return _of_many(lambda *values: values, parts(*items))
            case ast.Call(func=called, args=arguments, keywords=[]):
                if (name := ast.unparse(called)) not in _FUNCTIONS:
                    parts(called)  # may itself use what is not allowed
                    raise ValueError(f"{self.shown} calls {show(name)}; allowed: {_ALLOWED}")
                values, (function, n) = parts(*arguments), _FUNCTIONS[name]
                is_least = name in ("min", "max")
                if not n <= len(values) <= (math.inf if is_least else n):
                    gives = f"gives {name} {counted(len(values), 'value')}"
                    allowed = f"{n} or more" if is_least else n
                    raise ValueError(f"{self.shown} {gives}; allowed: {allowed}")
                return _of_many(function, values)
        raise self._refusal(node)

    def _parts(self, depth: int, *nodes: ast.AST) -> list[_Evaluate]:
        return [self.compiled(node, depth) for node in nodes]

    def _operator(self, op: ast.AST) -> Callable:
        if type(op) not in _OPERATORS:
            raise self._refusal(op)
        return _OPERATORS[type(op)]

    def _refusal(self, node: ast.AST) -> ValueError:
        return ValueError(f"{self.shown} uses {type(node).__name__.lower()}; allowed: {_ALLOWED}")


def _of_two(operation: Callable, x: _Evaluate, y: _Evaluate) -> _Evaluate:
    return lambda values: operation(x(values), y(values))


def _of_many(operation: Callable, parts: list[_Evaluate]) -> _Evaluate:
    return lambda values: operation(*[part(values) for part in parts])


def _and(x: _Evaluate, y: _Evaluate) -> _Evaluate:
    return lambda values: x(values) and y(values)


def _or(x: _Evaluate, y: _Evaluate) -> _Evaluate:
    return lambda values: x(values) or y(values)
