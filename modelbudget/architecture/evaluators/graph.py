"""Formulas as numbered nodes of one graph, which a browser evaluates for the calculator.

A node is a field, a constant, or an operation on two earlier nodes. Equal expressions are one node,
so that the hundreds of sums of a peak share what they have in common.
"""

from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

from modelbudget.architecture.arithmetic import ceil_div, largest_of, positive
from modelbudget.architecture.evaluators.repeats import without_repeats

EXACT_BELOW = 2**53
"""JavaScript reads larger whole numbers inexactly."""
FIELD, CONSTANT, POSITIVE, CEIL_DIV, LARGEST = "f", "k", "p", "c", "m"
"""Operations of nodes, with + - *."""

NEAR = 128
"""Distance between nodes from which on an operand is written as its number."""

_ARITHMETIC = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def namespace(record, categories: dict[str, str]) -> SimpleNamespace:
    """One expression for each size and switch of a record (1 is yes, 0 is no); text as given."""
    return SimpleNamespace(**{name: field(name) for name in record.numeric()}, **categories)


def field(name: str) -> "Expression":
    return _expression(FIELD, name)


class Expression:
    """A field by its name, or an operation on expressions and numbers.

    Sums with 0 and products with 0 or 1 are none: most optional parts are absent from a model.
    """

    __slots__ = ("operands", "operation")

    def __init__(self, operation: str, operands: tuple):
        self.operation, self.operands = operation, operands

    def __add__(self, other):
        if other.__class__ is int and other == 0:
            return self
        return _expression("+", self, other)

    __radd__ = __add__

    def __sub__(self, other):
        if other.__class__ is int and other == 0:
            return self
        return _expression("-", self, other)

    def __rsub__(self, other):
        return _expression("-", other, self)

    def __mul__(self, other):
        if other.__class__ is int and other in (0, 1):
            return self if other else 0
        return _expression("*", self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return -_expression(CEIL_DIV, -self, other)

    def __rfloordiv__(self, other):
        return -_expression(CEIL_DIV, -other, self)

    def __neg__(self):
        return _expression("-", 0, self)


@cache
def _expression(operation: str, *operands) -> Expression:
    """Equal expressions are one object: each is one node, however many formulas use it."""
    return Expression(operation, operands)


class Node(NamedTuple):
    """An operation and its two operands: the numbers of nodes.

    A field has its index in `Graph.fields` instead, a constant its value; an operand that is not
    there is 0.
    """

    operation: str
    left: int
    right: int = 0


class Graph:
    """Nodes in an order in which each comes after its operands."""

    def __init__(self):
        self.nodes: dict[Node, int] = {}
        self.fields: list[str] = []
        self._rows: list[Node] = []
        self._numbers: dict[Expression, int] = {}

    def node(self, value) -> int:
        """Return the number of the node that holds a value, an expression or a number."""
        if not isinstance(value, Expression):
            return self._add(Node(CONSTANT, int(value)))
        numbers, waiting = self._numbers, [value]
        while waiting:  # not recursive: a peak is a sum of hundreds of sums
            last = waiting[-1]
            if last in numbers:
                waiting.pop()
                continue
            missing = [x for x in last.operands if x.__class__ is Expression and x not in numbers]
            if missing:
                waiting += missing
            else:
                numbers[waiting.pop()] = self._number(last)
        return self._numbers[value]

    def constant(self, number: int) -> int | None:
        """Return the value of a node that is a constant."""
        row = self._rows[number]
        return row.left if row.operation == CONSTANT else None

    def sizes(self, value) -> set[str]:
        """Return the sizes and switches that a value depends on."""
        fields, seen, waiting = set(), set(), [self.node(value)]
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            operation, left, right = self._rows[number]
            if operation == FIELD:
                fields.add(self.fields[left])
            elif operation != CONSTANT:
                waiting += (left, right)
        return fields

    def data(self) -> dict[str, str | list]:
        """Return the graph for a script: operations as one text, operands, and copies of rows.

        An operand that is less than NEAR nodes back is that distance, another one minus its number:
        so formulas that use the same nodes in the same order have equal rows, which are there once
        (`repeats.py`).
        """
        rows = []
        for number, (operation, left, right) in enumerate(self._rows):
            if operation not in (FIELD, CONSTANT):
                left = number - left if number - left < NEAR else -left
                right = number - right if number - right < NEAR else -right
            rows.append((operation, left, right))
        new, copies = without_repeats(rows)
        return {
            "fields": self.fields,
            "operations": "".join(rows[i][0] for i in new),
            "left": [rows[i][1] for i in new],
            "right": [rows[i][2] for i in new],
            "copies": [list(column) for column in zip(*copies, strict=True)] or [[], [], []],
        }

    def _number(self, expression: Expression) -> int:
        operation, operands = expression.operation, expression.operands
        if operation == FIELD:
            if operands[0] not in self.fields:
                self.fields.append(operands[0])
            return self._add(Node(FIELD, self.fields.index(operands[0])))
        numbers = [
            self._numbers[x] if x.__class__ is Expression else self._add(Node(CONSTANT, int(x)))
            for x in operands
        ]
        if operation != LARGEST:
            return self._simplest(operation, *numbers)
        largest, *nodes = dict.fromkeys(numbers)
        for node in nodes:
            largest = self._add(Node(LARGEST, largest, node))
        return largest

    def _simplest(self, operation: str, left: int, right: int = 0) -> int:
        """Simplify by constants: most optional parts are absent from a model."""
        if operation in _ARITHMETIC:
            x, y = self.constant(left), self.constant(right)
            if x is not None and y is not None:
                return self.node(_ARITHMETIC[operation](x, y))
            if operation == "*" and 0 in (x, y):
                return self.node(0)
            if (operation == "*" and x == 1) or (operation == "+" and x == 0):
                return right
            if (operation == "*" and y == 1) or (operation in "+-" and y == 0):
                return left
        if operation in "+*" and left < right:
            left, right = right, left
        return self._add(Node(operation, left, right))

    def _add(self, node: Node) -> int:
        number = self.nodes.setdefault(node, len(self.nodes))
        if number == len(self._rows):
            self._rows.append(node)
        return number


@ceil_div.register
def _(x: Expression, y):
    return _expression(CEIL_DIV, x, y)


@positive.register
def _(x: Expression):
    return _expression(POSITIVE, x)


@largest_of.register
def _(*values: Expression):
    return _expression(LARGEST, *values)
