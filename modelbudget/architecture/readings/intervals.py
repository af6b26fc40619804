"""Formulas over intervals: the least and the most that any model of a whole grid can give.

The bounds hold and may be wide. They tell in one reading that no row of a grid leaves 64-bit
integers, not even on the way to its result.
"""

from types import SimpleNamespace

from modelbudget.architecture.operations import ceil_div, largest_of, positive
from modelbudget.architecture.record import MAX_COUNT


def namespace(kind, fields: dict) -> SimpleNamespace:
    """A record's fields: sizes and switches as intervals from (least, most) pairs or as numbers;
    words as they are.
    """
    given = {name: fields[name] for name in kind.model_fields}
    return SimpleNamespace(
        **{n: Interval(*v) if isinstance(v, tuple) else v for n, v in given.items()}
    )


def most(value) -> int:
    """The upper bound of what a formula gives."""
    return _ends(value)[1]


def fits(value) -> bool:
    """Whether what a formula gives surely fits 64 bits, with all that it is computed from."""
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


@ceil_div.register(Interval)
def _(x, y):
    return -(-x // y)


@positive.register(Interval)
def _(x):
    return Interval(int(x.low > 0), int(x.high > 0), x)


@largest_of.register(Interval)
def _(*values):
    lows, highs = zip(*map(_ends, values), strict=True)
    return Interval(max(lows), max(highs), *values)
