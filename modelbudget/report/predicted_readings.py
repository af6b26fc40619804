"""What GPUs took, as others published it and as ours recorded it, with what is predicted of it.

No sweep changes it, and it takes seconds: a page of all sweeps reads it from `FILE` of its results.
"""

from functools import cache
from typing import Any

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.catalogue.published_readings import gpu_readings
from modelbudget.common.paths import CONFIGS
from modelbudget.compare.readings_of_gpus import Row, rows
from modelbudget.report.page_results import Results
from modelbudget.report.ratios import Point, recorded_points

READINGS = CONFIGS / "gpu_readings.yaml"
FILE = "assets/readings.json"


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
