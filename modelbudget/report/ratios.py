"""Act 7's drawing: predicted ÷ reported, of every number of others that has a prediction."""

from collections import Counter

from modelbudget.compare.readings_of_gpus import CLOSE, Row
from modelbudget.report.charts.format import count

ROOM, DOT, SPACE = 720, 9, 16
"""Width that dots are stacked for, their size, and the height below a row."""
LEAST, MOST = 0.78, 1.06
"""Ends of the axis, unless a ratio is beyond."""


def ratios(readings: list[Row]) -> dict | None:
    """Return the dots of readings by source, those of one place stacked; None without any."""
    points = [row for row in readings if row.ratio is not None]
    if not points:
        return None
    values = [row.ratio or 0 for row in points]
    low, high = min(LEAST, *values), max(MOST, *values)
    sources, bottom = [], 0
    for title in dict.fromkeys(row.source.title for row in points):
        own = [row for row in points if row.source.title == title]
        taken: Counter[int] = Counter()
        dots = []
        for row in sorted(own, key=lambda row: row.ratio or 0):
            x = ((row.ratio or 0) - low) / (high - low)
            column = round(ROOM * x / DOT)
            dots.append((f"{100 * x:.2f}", taken[column], row))
            taken[column] += 1
        top, bottom = bottom + 22, bottom + 22 + DOT * max(taken.values()) + SPACE
        off = [row for row in own if not row.is_close]
        sources.append(
            {
                "title": f"{title}: {len(own) - len(off)} of {len(own)} within {CLOSE * 100:.0f} %",
                "y": top - 8,
                "reason": off[0].reason.split(";")[0] if off else "",
                "n_off": len(off),
                "dots": [
                    {"x": x, "y": bottom - SPACE - DOT * place, "close": row.is_close,
                     "title": f"{row.model}, {row.reading.gib:.2f} GiB reported: "
                     f"{row.ratio:.3f}" + (f"; {row.reason}" if row.reason else "")}
                    for x, place, row in dots
                ],
            }
        )  # fmt: skip
    ticks = [n / 100 for n in range(50, 200, 5) if low <= n / 100 <= high]
    close = sum(row.is_close for row in points)
    return {
        "sources": sources,
        "high": bottom,
        "ticks": [
            {"x": f"{100 * (tick - low) / (high - low):.2f}", "text": f"{tick:.2f}",
             "is_one": tick == 1}
            for tick in ticks
        ],
        "sentence": f"{count(close)} of {count(len(points))} readings of GPUs are within "
        f"{CLOSE * 100:.0f} % of the prediction",
    }  # fmt: skip
