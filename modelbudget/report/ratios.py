"""Act 7's drawing: predicted ÷ reported, of every number of others that has a prediction."""

from collections import Counter
from typing import NamedTuple

from modelbudget.compare.readings_of_gpus import CLOSE, Row
from modelbudget.report.charts.format import count
from modelbudget.report.implementation_tables import sums_of_classes
from modelbudget.report.page_results import SweepResult

ROOM, DOT, SPACE = 720, 9, 16
"""Width that dots are stacked for, their size, and the height below a row."""
LEAST, MOST = 0.78, 1.06
"""Ends of the axis, unless a ratio is beyond."""
WITHIN, EQUAL = f"within {CLOSE * 100:.0f} %", "equal"
"""What a reading of a GPU must be, and what the trace of a class must be."""


class Point(NamedTuple):
    """A number of others that has a prediction; `must` is what makes it close."""

    source: str
    must: str
    ratio: float
    is_close: bool
    title: str
    reason: str


def ratios(readings: list[Row], sweeps: list[SweepResult]) -> dict | None:
    """Return the dots of readings and classes by source, those of one place stacked.

    None without any reading that has a prediction.
    """
    of_gpus = [_of_gpu(row, row.ratio) for row in readings if row.ratio is not None]
    if not of_gpus:
        return None
    points = [*of_gpus, *_of_classes(sweeps)]
    values = [point.ratio for point in points]
    low, high = min(LEAST, *values), max(MOST, *values)
    sources, bottom = [], 0
    for source in dict.fromkeys(point.source for point in points):
        of_source = [point for point in points if point.source == source]
        n, taken = len(of_source), Counter[int]()
        dots = []
        for point in sorted(of_source, key=lambda point: point.ratio):
            x = (point.ratio - low) / (high - low)
            column = round(ROOM * x / DOT)
            dots.append((f"{100 * x:.2f}", taken[column], point))
            taken[column] += 1
        top, bottom = bottom + 22, bottom + 22 + DOT * max(taken.values()) + SPACE
        off = [point for point in of_source if not point.is_close]
        sources.append(
            {
                "title": f"{source}: {n - len(off)} of {n} {of_source[0].must}",
                "y": top - 8,
                "reason": off[0].reason.split(";")[0] if off else "",
                "n_off": len(off),
                "dots": [
                    {"x": x, "y": bottom - SPACE - DOT * place, "close": point.is_close,
                     "title": f"{point.title}: {point.ratio:.3f}"
                     + (f"; {point.reason}" if point.reason else "")}
                    for x, place, point in dots
                ],
            }
        )  # fmt: skip
    ticks = [n / 100 for n in range(50, 200, 5) if low <= n / 100 <= high]
    close = sum(point.is_close for point in of_gpus)
    return {
        "sources": sources,
        "high": bottom,
        "has_classes": len(points) > len(of_gpus),
        "ticks": [
            {"x": f"{100 * (tick - low) / (high - low):.2f}", "text": f"{tick:.2f}",
             "is_one": tick == 1}
            for tick in ticks
        ],
        "sentence": f"{count(close)} of {count(len(of_gpus))} readings of GPUs are {WITHIN} of the "
        "prediction",
    }  # fmt: skip


def _of_gpu(row: Row, ratio: float) -> Point:
    title = f"{row.model}, {row.reading.gib:.2f} GiB reported"
    return Point(row.source.title.partition(",")[0], WITHIN, ratio, row.is_close, title, row.reason)


def _of_classes(sweeps: list[SweepResult]) -> list[Point]:
    """Return what is predicted with the settings of `transformers`, over what its class traces."""
    return [
        Point(
            "Classes of transformers, traced", EQUAL, row["formula"] / row["reference"],
            row["formula"] == row["reference"],
            f"{row['label']}, {row['quantity']}, {count(row['reference'])} bytes traced",
            row["known_difference"] or "",
        )
        for row in sums_of_classes(sweeps)
    ]  # fmt: skip
