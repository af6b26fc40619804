"""Formulas over intervals: lower and upper bounds over all models of a grid.

The bounds hold and may be wide. One evaluation proves that no row of a grid overflows 64-bit
integers, intermediate results included.
"""

from types import SimpleNamespace

from modelbudget.architecture.arithmetic import is_nothing, largest_of, positive
from modelbudget.architecture.record import MAX_COUNT


def namespace(schema, fields: dict) -> SimpleNamespace:
    """Return a record's fields as intervals, numbers and text.

    Sizes and switches are intervals, from pairs (least, most), or numbers. Categorical fields are
    text, unchanged.
    """
    values = {name: fields[name] for name in schema.model_fields}
    return SimpleNamespace(
        **{n: Interval(*v) if isinstance(v, tuple) else v for n, v in values.items()}
    )


def least(value) -> int:
    """Return the lower bound of a formula's value."""
    return _ends(value)[0]


def most(value) -> int:
    """Return the upper bound of a formula's value."""
    return _ends(value)[1]


def fits(value) -> bool:
    """Whether a formula's value surely fits 64 bits, with all its intermediate values."""
    return value.fits if isinstance(value, Interval) else value <= MAX_COUNT


class Interval:
    """All numbers from `low` to `high`, computed from other values."""

    __slots__ = ("fits", "high", "low")

    def __init__(self, low: int, high: int, *computed_from):
        self.low, self.high = low, high
        self.fits = max(-low, high) <= MAX_COUNT and all(map(fits, computed_from))

    def __add__(self, other):
        low, high = _ends(other)
        return Interval(self.low + low, self.high + high, self, other)

    __radd__ = __add__

    def __sub__(self, other):
        low, high = _ends(other)
        return Interval(self.low - high, self.high - low, self, other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        if is_nothing(other):
            return 0
        products = [x * y for x in _ends(self) for y in _ends(other)]
        return Interval(min(products), max(products), self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        quotients = [x // y for x in _ends(self) for y in _ends(other)]
        return Interval(min(quotients), max(quotients), self, other)

    def __rfloordiv__(self, other):
        return Interval(other, other) // self

    def __neg__(self):
        return Interval(-self.high, -self.low, self)


def _ends(value) -> tuple[int, int]:
    return (value.low, value.high) if isinstance(value, Interval) else (value, value)


@positive.register(Interval)
def _(x):
    return Interval(int(x.low > 0), int(x.high > 0), x)


@largest_of.register(Interval)
def _(*values):
    lows, highs = zip(*map(_ends, values), strict=True)
    return Interval(max(lows), max(highs), *values)
