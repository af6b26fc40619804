"""Constraints as Vega expressions: conditions and messages, for the calculator."""

import ast
import json
from collections.abc import Collection
from fractions import Fraction

from modelbudget.architecture.constraint import Constraint
from modelbudget.common.expressions import Expression

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.USub: "-",
    ast.Not: "!", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">",
    ast.GtE: ">=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip
_FUNCTIONS = {"exp2": "pow(2,{})", "first": "join(slice(split({},' '),0,{}),' ')"}
"""Those that Vega has not by the same name."""


def mistake(constraint: Constraint, switches: Collection[str]) -> str:
    """Return the Vega expression of a constraint's error message, empty where the constraint holds.

    Fields are signals, of which `switches` are 1 or 0.
    """
    parts = [
        json.dumps(part, ensure_ascii=False)
        if isinstance(part, str)
        else _shown(part.expression, part.commas, switches)
        for part in constraint.message
    ]
    holds = _text(constraint.holds.tree)
    return f"{holds} ? '' : {' + '.join(parts)}"


def expression_in_vega(expression: Expression) -> str:
    """Return an expression in Vega's syntax; its names are signals."""
    return _text(expression.tree)


def _shown(expression: Expression, commas: bool, switches: Collection[str]) -> str:
    if expression.text in switches:
        return f"({expression.text} ? 'true' : 'false')"
    text = _text(expression.tree)
    return f"format({text},',d')" if commas else text


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=Fraction() as value):
            return f"({value.numerator}/{value.denominator})"
        case ast.Constant(value=value):
            return json.dumps(value)
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=parts):
            return f"[{','.join(map(_text, parts))}]"
        case ast.UnaryOp(op=op, operand=operand):
            return f"({_OPERATORS[type(op)]}{_text(operand)})"
        case ast.BinOp(op=ast.FloorDiv(), left=left, right=right):
            return f"floor({_text(left)}/{_text(right)})"
        case ast.BinOp(op=op, left=left, right=right):
            return f"({_text(left)}{_OPERATORS[type(op)]}{_text(right)})"
        case ast.BoolOp(op=op, values=parts):
            return f"({_OPERATORS[type(op)].join(map(_text, parts))})"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            tests = map(_compared, ops, [left, *comparators], comparators)
            return f"({'&&'.join(tests)})"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            texts = [_text(argument) for argument in arguments]
            return _FUNCTIONS.get(name, f"{name}({','.join('{}' for _ in texts)})").format(*texts)
    raise AssertionError(f"{type(node).__name__} is not among the nodes of expressions")


def _compared(op: ast.cmpop, left: ast.AST, right: ast.AST) -> str:
    if isinstance(op, ast.In | ast.NotIn):
        is_list = isinstance(right, ast.Tuple | ast.BoolOp)  # layer in (moe_layers or (-1,))
        words = _text(right) if is_list else f"split({_text(right)},' ')"
        return f"indexof({words},{_text(left)}){'>=' if isinstance(op, ast.In) else '<'}0"
    return f"{_text(left)}{_OPERATORS[type(op)]}{_text(right)}"
