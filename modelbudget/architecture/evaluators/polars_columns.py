"""Formulas over Polars columns: a whole grid at once."""

from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.arithmetic import largest_of, positive, same


def namespace(schema, fields: dict) -> SimpleNamespace:
    """Return a record's fields as columns, numbers and text.

    Sizes and switches are columns or, where all rows have the same value, one number (yes is 1, no
    is 0). Categorical fields are text, unchanged.
    """
    values_by_name = {name: fields[name] for name in schema.model_fields}
    return SimpleNamespace(
        **{n: Column(v) if isinstance(v, pl.Series) else v for n, v in values_by_name.items()}
    )


def series(value, height: int) -> pl.Series:
    """Convert the value of a formula to a column of `height` rows; repeat a constant."""
    if isinstance(value, Column):
        return value.values
    dtype = pl.Float64 if isinstance(value, float) else pl.Int64
    return pl.Series([value], dtype=dtype).new_from_index(0, height)  # 7 × as fast as pl.repeat


class Column:
    """A column in a formula.

    Multiplying by the number 0 or 1, or adding the number 0, is not computed row by row: a part
    that a model lacks is multiplied by 0.

    Columns and not lazy expressions: in a long formula a value that is used often is computed once.
    """

    __slots__ = ("values",)

    def __init__(self, values: pl.Series):
        self.values = values

    def __add__(self, other):
        return self if _is(0, other) else Column(self.values + _bare(other))

    __radd__ = __add__

    def __sub__(self, other):
        return self if _is(0, other) else Column(self.values - _bare(other))

    def __rsub__(self, other):
        return Column(other - self.values)

    def __mul__(self, other):
        if _is(0, other):
            return 0
        return self if _is(1, other) else Column(self.values * _bare(other))

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return self if _is(1, other) else Column(self.values // _bare(other))

    def __rfloordiv__(self, other):
        return Column(other // self.values)

    def __neg__(self):
        return Column(-self.values)


def _is(number: int, other) -> bool:
    return isinstance(other, int | float) and other == number


def _bare(other):
    return other.values if isinstance(other, Column) else other


@positive.register(Column)
def _(x):
    return Column((x.values > 0).cast(pl.Int64))


@largest_of.register(Column)
def _(first, *operands):
    values = first.values
    for operand in operands:
        column = series(operand, len(values))
        values = values.zip_with(values > column, column)
    return Column(values)


@same.register(Column)
def _(x, y):
    return isinstance(y, Column) and x.values.equals(y.values)
