"""The section of readings of GPUs that others published, next to our predictions."""

from modelbudget.common.number_format import count
from modelbudget.compare.readings_of_gpus import CLOSE, Row
from modelbudget.report.charts.chart_tables import grouped
from modelbudget.report.ratios import readings_of
from modelbudget.report.section import Page, Section


def _contents(page: Page) -> dict:
    return gpu_readings(readings_of(page.results, page.catalogue)[0])


def gpu_readings(readings: list[Row]) -> dict:
    """Return what the template shows: the readings of each source, and how many are close."""
    points = [row for row in readings if row.ratio is not None]
    close = sum(row.is_close for row in points)
    return {
        "answer": f"Of {count(len(readings))} published readings {len(points)} have a prediction, "
        f"{close} within {CLOSE * 100:.0f} %; every other row has a reason.",
        "sources": list(grouped(readings, lambda row: row.source.title).values()),
    }


SECTION = Section(160, "gpu-readings", "GPUs that others measured", _contents, of_all=True)
