"""Formulas as Polars expressions: a whole grid at once."""

from types import SimpleNamespace

import polars as pl

from modelbudget.operations import ceil_div, positive


def namespace(family, words: dict[str, str]) -> SimpleNamespace:
    """One Int64 column for each size and switch of a family (yes is 1, no is 0); words as given."""
    sizes = {name: pl.col(name).cast(pl.Int64) for name in family.sizes()}
    return SimpleNamespace(**sizes, **words)


@ceil_div.register(pl.Expr)
def _(x, y):
    return -(-x // y)


@positive.register(pl.Expr)
def _(x):
    return (x > 0).cast(pl.Int64)
