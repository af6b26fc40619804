"""Formulas as Vega expressions: what a browser computes behind a slider."""

from types import SimpleNamespace

import altair as alt
from altair.expr.core import OperatorMixin

from modelbudget.operations import ceil_div, largest_of, positive


def namespace(family, words: dict[str, str]) -> SimpleNamespace:
    """One Vega signal for each size and switch of a family (yes is 1, no is 0); words as given."""
    sizes = {name: alt.param(name=name) for name in family.sizes()}
    return SimpleNamespace(**sizes, **words)


def to_text(value) -> str:
    """An expression, or a plain number, as Vega's parser takes it."""
    written = value.to_dict() if isinstance(value, OperatorMixin) else value
    return str(written["expr"] if isinstance(written, dict) else written)


@ceil_div.register(OperatorMixin)
def _(x, y):
    return alt.expr.ceil(x / y)


@positive.register(OperatorMixin)
def _(x):
    return alt.expr.if_(x > 0, 1, 0)


@largest_of.register(OperatorMixin)
def _(*values):
    return alt.expr.max(*values)
