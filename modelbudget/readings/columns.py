"""Formulas over Polars columns: a whole grid at once."""

from types import SimpleNamespace

import polars as pl

from modelbudget.operations import ceil_div, largest_of, positive


def namespace(kind, words: dict[str, str], rows: pl.DataFrame) -> SimpleNamespace:
    """One Int64 column for each size and switch of a record (yes is 1, no is 0); words as given.

    Columns and not expressions: in a long formula a value that is used often is computed once.
    """
    sizes = {name: rows[name].cast(pl.Int64) for name in kind.sizes()}
    return SimpleNamespace(**sizes, **words)


@ceil_div.register(pl.Series)
def _(x, y):
    return -(-x // y)


@positive.register(pl.Series)
def _(x):
    return (x > 0).cast(pl.Int64)


@largest_of.register(pl.Series)
def _(first, *others):
    for other in others:
        column = other if isinstance(other, pl.Series) else pl.repeat(other, len(first), eager=True)
        first = first.zip_with(first > column, column)
    return first
