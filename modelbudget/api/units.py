"""Numbers for people: 8.03B parameters, 16.1 GB (10⁹ bytes), 2.24 PFLOP."""

_COUNTS = (("T", 12), ("B", 9), ("M", 6), ("k", 3))
_BYTES = (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3))
_FLOPS = (("EFLOP", 18), ("PFLOP", 15), ("TFLOP", 12), ("GFLOP", 9), ("MFLOP", 6))


def readable(quantity: str, value: int) -> str:
    """Format a value with three digits and the unit of its quantity."""
    if quantity.endswith("_bytes"):
        return _scaled(value, _BYTES, " ", " bytes")
    if quantity.startswith("flops"):
        return _scaled(value, _FLOPS, " ", " FLOP")
    return _scaled(value, _COUNTS, "", "")


def _scaled(value: int, units: tuple[tuple[str, int], ...], space: str, smallest: str) -> str:
    for unit, power in units:
        # From 999.5 on, three digits round to the next unit.
        if value >= 9.995 * 10 ** (power - 1):
            return f"{_three_digits(value / 10**power)}{space}{unit}"
    return f"{value:,}{smallest}"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f}"


def share_of(value: int, total: int) -> str:
    """Format a share of a total in percent; a share that rounds to 0 is not printed as 0."""
    if not total or not value:
        return "0 %"
    percent = 100 * value / total
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2f} %"
