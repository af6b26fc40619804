"""Numbers as text, for people."""

from collections import Counter

_PREFIXES = tuple((prefix, 3 * (i + 1)) for i, prefix in reversed([*enumerate("kMGTPEZY")]))
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case, and nothing else changed."""
    return text[:1].upper() + text[1:]


def count(value: int) -> str:
    """Format with thousands separators: 540356474880 → 540,356,474,880."""
    return f"{value:,}"


def counted(n: int, noun: str) -> str:
    """Format a number with its noun: 1 layout, 2 layouts."""
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def signed(difference: int) -> str:
    """Format a difference with its sign: +1,024 or −512."""
    return f"{'−' if difference < 0 else '+'}{abs(difference):,}"


def scientific(value: int) -> str:
    """Format with three digits and a power of ten: 3283456000000000000000000 → 3.28 × 10²⁴."""
    digits, power = f"{value:.2e}".split("e+")
    return f"{digits} × 10{str(int(power)).translate(_RAISED)}"


def si_bytes(value: int) -> str:
    """Format bytes with SI units and three digits: 141000000000 → 141 GB, 2798123 → 2.8 MB."""
    return _si(value, "B") if value >= 1000 else f"{value:g} bytes"


def si_flops(value: int) -> str:
    """Format FLOPs with SI units and three digits: 291648307200 → 292 GFLOP; exact below 10⁶."""
    return _si(value, "FLOP") if value >= 10**6 else f"{value:,.10g} FLOP"


def _si(value: int, unit: str) -> str:
    prefix, power = next((p, n) for p, n in _PREFIXES if value >= 10**n)
    return f"{float(f'{value / 10**power:.3g}'):,.10g} {prefix}{unit}"


def each(n_bytes: int, n: int) -> str:
    """Format bytes a parameter: one digit after the point, or two below one byte."""
    value = n_bytes / n
    return "0" if value < 0.005 else f"{value:.{1 if value >= 1 else 2}f}".removesuffix(".0")


def times(ratio: float) -> str:
    """Format a ratio with three digits: 1055251.5 → 1,060,000 ×, 1.176 → 1.18 ×.

    Near 1 it has as many more as distinguish it: 1.00042 → 1.0004 ×.
    """
    rounded = (float(f"{ratio:.{digits}g}") for digits in range(3, 11))
    return f"{next((value for value in rounded if value != 1), 1.0):,.10g} ×"


def percent(share: float) -> str:
    """Format a share with enough digits to distinguish it from 0 % and from 100 %."""
    hundredths = 100 * share
    if 0 < hundredths < 0.01:
        return "< 0.01 %"
    if 99.99 < hundredths < 100:
        return "> 99.99 %"
    digits = 2 if hundredths < 1 or 99.9 < hundredths < 100 else 1
    return "100 %" if share == 1 else "0 %" if share == 0 else f"{hundredths:.{digits}f} %"


def signed_percent(share: float) -> str:
    """Format a relative difference: +3.4 %, −0.02 %, or < 0.01 % for both signs."""
    text = percent(abs(share))
    return text if text.startswith("<") else f"{'−' if share < 0 else '+'}{text}"


def shapes(of: list[list[int]]) -> str:
    """Format shapes, equal ones once with their number: `3 of 2 × 1 × 3 × 5`."""
    numbers = Counter(" × ".join(map(count, shape)) for shape in of)
    return ", ".join(f"{n} of {shape}" if n > 1 else shape for shape, n in numbers.items())


def short(value: int) -> str:
    """Format with three digits and a letter: 540356474880 → 540B."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        if value >= 10**power:
            return f"{float(f'{value / 10**power:.3g}'):g}{letter}"
    return str(value)


def in_full(value: int) -> str:
    """Format as `short`, with a word in place of the letter: 540356474880 → 540 billion."""
    words = {"T": " trillion", "B": " billion", "M": " million", "K": " thousand"}
    text = short(value)
    return text[:-1] + words[text[-1]] if text[-1] in words else text
