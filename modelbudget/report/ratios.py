"""Act 7's drawing: predicted ÷ read, of every number of others that has a prediction.

No sweep changes what GPUs took, and its predictions take seconds: a page of all sweeps reads them
from `FILE` of its results.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.catalogue.published_readings import gpu_readings
from modelbudget.common.number_format import count
from modelbudget.common.paths import CONFIGS
from modelbudget.compare import recorded_peaks
from modelbudget.compare.readings_of_gpus import CLOSE, Row, rows
from modelbudget.compare.zoo import AGREES, agreement
from modelbudget.report.implementation_tables import sums_of_classes
from modelbudget.report.page_data import PAGE
from modelbudget.report.page_results import Results, SweepResult

READINGS = CONFIGS / "gpu_readings.yaml"
FILE = "assets/readings.json"
ROOM, WIDE, HIGH, SPACE = 720, 10, 9, 16
"""Width that dots are stacked for, the room of one, and the height below a row.

On a phone width and dots are half as large.
"""
OF_NUMBER = 80
"""Room of a dot with its number, which is as wide on a phone."""
MOST_NAMED = 24
"""Models that one dot names at most."""
LEAST, MOST, EDGE = 0.78, 1.06, 0.015
"""Ends of the axis, unless a ratio is beyond, and the room at each end, as a share of the axis."""
WITHIN, ROUNDED, EQUAL = f"within {CLOSE * 100:.0f} %", "within their rounding", "equal"
"""What a published reading must be, a printed size, and the peak of a recorded or traced run."""
RECORDED: dict[str, str] = PAGE["recorded"]
"""Sections of the recorded runs, by the name of their dots."""


class Point(NamedTuple):
    """A number of others that has a prediction; `must` is what makes it close, `n` its dot's."""

    source: str
    must: str
    ratio: float
    is_close: bool
    title: str
    reason: str
    n: int = 1


def recorded_points(catalogue: Catalogue, sections=(*RECORDED,)) -> tuple[Point, ...]:
    """Return the dots of the runs that GPUs recorded, of the models that the catalogue has."""
    recorded, points = recorded_peaks.recorded(), []
    for section in sections:
        for row in recorded[section]:
            if row["base"] in catalogue.bases:
                run = recorded_peaks.peaks(row, section, catalogue)
                settings = ", ".join(f"{name} {value}" for name, value in run.settings.items())
                title = f"{run.label}, {settings}: {count(run.requested[run.phase])} bytes read"
                is_equal = run.is_equal(run.phase)
                points.append(
                    Point(RECORDED[section], EQUAL, run.ratio, is_equal, title, run.reason)
                )
    return tuple(points)


@cache  # takes seconds, and is the same for all pages of a process
def predicted(catalogue: Catalogue) -> dict[str, Any]:
    """Predict every reading, as plain values: of rows what the file of readings does not have."""
    published = rows(gpu_readings(READINGS), catalogue)
    of_rows = [(row.model, row.predicted, row.refused) for row in published]
    return {"published": of_rows, "recorded": recorded_points(catalogue)}


def readings_of(results: Results, catalogue: Catalogue) -> tuple[list[Row], list[Point]]:
    """Return rows of published readings, and dots of recorded runs, of a page."""
    values, read = results.parts.get(FILE) or predicted(catalogue), gpu_readings(READINGS)
    published = [
        Row(read.sources[reading.source], model, reading, *of)
        for reading, (model, *of) in zip(read.readings, values["published"], strict=True)
    ]
    return published, [Point(*of) for of in values["recorded"]]


def ratios(
    readings: list[Row], sweeps: list[SweepResult], recorded: Sequence[Point] = ()
) -> dict | None:
    """Return the dots of recorded runs, readings and classes by source, those of a place stacked.

    None without any reading that has a prediction.
    """
    of_gpus = [
        Point(
            row.source.title.partition(",")[0], WITHIN, row.ratio, row.is_close,
            f"{row.model}, {row.reading.gib:.2f} GiB reported", row.reason,
        )
        for row in readings
        if row.ratio is not None
    ]  # fmt: skip
    if not of_gpus:
        return None
    points = [*recorded, *of_gpus, *_printed(sweeps), *_of_classes(sweeps)]
    values = [point.ratio for point in points]
    low, high = min(LEAST, *values), max(MOST, *values)
    low, high = low - EDGE * (high - low), high + EDGE * (high - low)
    sources, bottom = [], 0
    for source in dict.fromkeys(point.source for point in points):
        of_source = [point for point in points if point.source == source]
        taken, dots = [], []  # lines of dots, with the ends of each dot's room
        for point in sorted(_equal_once(of_source), key=lambda point: (point.n == 1, point.ratio)):
            x = (point.ratio - low) / (high - low)
            left, right = ROOM * x, ROOM * x + (WIDE if point.n == 1 else OF_NUMBER)
            full = {place for place, start, end in taken if start < right and left < end}
            place = min({*range(len(taken) + 1)} - full)
            taken.append((place, left, right))
            dots.append((f"{100 * x:.2f}", place, point))
        top, bottom = bottom + 22, bottom + 22 + HIGH * (1 + max(taken)[0]) + SPACE
        n_close = sum(point.is_close for point in of_source)
        sources.append(
            {
                "title": f"{source}: {n_close} of {len(of_source)} {of_source[0].must}",
                "y": top - 8,
                "dots": [
                    {"x": x, "y": bottom - SPACE - HIGH * place, "close": point.is_close,
                     "n": point.n,
                     "title": "; ".join(filter(None, (point.title, point.reason)))}
                    for x, place, point in dots
                ],
            }
        )  # fmt: skip
    ticks = [n / 100 for n in range(50, 200, 5) if low <= n / 100 <= high]
    training = [point for point in recorded if point.source != RECORDED["inference"]]
    return {
        "sources": sources,
        "high": bottom,
        "has_classes": len(points) > len(of_gpus) + len(recorded),
        "has_recorded": bool(recorded),
        "ticks": [(100 * (tick - low) / (high - low), tick) for tick in ticks],
        "sentence": _close(
            training, "training runs on an H100 and an H200 peak as predicted, to the byte; "
        )
        + _close(of_gpus, f"published readings of GPUs are {WITHIN} of the prediction"),
    }


def _equal_once(points: list[Point]) -> list[Point]:
    """Return the points, those that equal their prediction as one, and others with their ratio."""
    equal = [point for point in points if point.must != WITHIN and point.is_close]
    others = [
        point._replace(title=f"{point.title}: {point.ratio:.3f}")
        for point in points
        if point not in equal
    ]
    if not equal:
        return others
    names = list(dict.fromkeys(point.title.partition(",")[0] for point in equal))
    more = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
    title = f"{len(equal)} {equal[0].must}: {', '.join(names[:MOST_NAMED])}{more}"
    return [equal[0]._replace(ratio=1.0, title=title, reason="", n=len(equal)), *others]


def _close(points: list[Point], what: str) -> str:
    close = sum(point.is_close for point in points)
    return f"{count(close)} of {count(len(points))} {what}" if points else ""


def _printed(sweeps: list[SweepResult]) -> list[Point]:
    """Return the predicted sizes of published models, over those that are printed."""
    return [
        Point(
            "Sizes in papers and model cards", ROUNDED,
            row["predicted"] / row["published_value"], row["status"] == AGREES,
            f"{row['label']}, {row['published']} printed", row["published_value_reason"] or "",
        )
        for sweep in sweeps
        if sweep.zoo is not None
        for row in sweep.zoo.with_columns(status=agreement("published_value"))
        .drop_nulls("published_value_difference").iter_rows(named=True)
    ]  # fmt: skip


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
