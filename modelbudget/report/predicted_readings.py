"""What GPUs took, as others published it and as ours recorded it, with what is predicted of it.

No sweep changes it, and it takes seconds: a page of all sweeps reads it from `FILE` of its results.
"""

from functools import cache
from typing import Any, NamedTuple

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.catalogue.published_readings import gpu_readings
from modelbudget.common.paths import CONFIGS
from modelbudget.compare.readings_of_gpus import Row, rows
from modelbudget.report.page_results import Results
from modelbudget.report.ratios import Point, recorded_points

READINGS = CONFIGS / "gpu_readings.yaml"
FILE = "assets/readings.json"


class Readings(NamedTuple):
    """Rows of published readings, and dots of recorded runs."""

    published: list[Row]
    recorded: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON: of rows what the file of readings does not have."""
        of_rows = [[row.model, row.predicted, row.refused] for row in self.published]
        return {"published": of_rows, "recorded": self.recorded}


@cache  # takes seconds, and is the same for all pages of a process
def predicted(catalogue: Catalogue) -> Readings:
    """Predict every reading."""
    return Readings(rows(gpu_readings(READINGS), catalogue), recorded_points(catalogue))


def readings_of(results: Results, catalogue: Catalogue) -> Readings:
    """Return the readings of a page: those among its results, or predicted now."""
    kept = results.parts.get(FILE)
    if kept is None:
        return predicted(catalogue)
    read = gpu_readings(READINGS)
    published = [
        Row(read.sources[reading.source], model, reading, *values)
        for reading, (model, *values) in zip(read.readings, kept["published"], strict=True)
    ]
    return Readings(published, tuple(Point(*values) for values in kept["recorded"]))
