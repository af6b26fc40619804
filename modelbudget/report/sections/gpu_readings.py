"""The section of readings of GPUs that others published, next to our predictions."""

from markupsafe import Markup

from modelbudget.catalogue.published_readings import Settings
from modelbudget.compare.readings_of_gpus import CLOSE, Row
from modelbudget.report import tables
from modelbudget.report.charts.format import count
from modelbudget.report.charts.grouped_values import grouped
from modelbudget.report.predicted_readings import readings_of
from modelbudget.report.section import Page, Section

RATIO, SIMULATOR_RATIO = "÷ reported", "simulator ÷ reported"
"""Heads of columns: our prediction as a multiple of the reading, and the source's simulator's."""


def _contents(page: Page) -> dict:
    return gpu_readings(readings_of(page.results, page.catalogue).published)


def gpu_readings(readings: list[Row]) -> dict:
    """Return what the template shows: for each source a table of all of its readings."""
    by_source = grouped(readings, lambda row: row.source.title)
    return {"answer": _answer(readings), "sources": list(map(_source, by_source.values()))}


def _answer(readings: list[Row]) -> str:
    """Return how many readings have which kind of prediction, in one sentence."""
    points = [row for row in readings if row.ratio is not None]
    close = sum(row.is_close for row in points)
    return (
        f"Of {count(len(readings))} published readings {len(points)} have a prediction, {close} "
        f"within {CLOSE * 100:.0f} %; every other row has a reason."
    )


def _source(readings: list[Row]) -> dict:
    source = readings[0].source
    return {
        "source": source,
        "settings": _named(source.settings),
        "table": tables.table(
            [_cells(row) for row in readings],
            f"{source.title}: GiB of the GPU that held most",
            ("reported", "predicted", RATIO, SIMULATOR_RATIO),
        ),
    }


def _cells(row: Row) -> dict:
    simulator = row.simulator_ratio
    settings = filter(None, (_named(row.reading.settings), row.reading.variant))
    cells = {
        "run": Markup("{} <small>{}</small>").format(row.model, ", ".join(settings)),
        "reported": f"{row.reading.gib:.2f}",
        "predicted": None if row.predicted is None else f"{row.predicted:.2f}",
        RATIO: None if row.ratio is None else f"{row.ratio:.3f}",
        SIMULATOR_RATIO: None if simulator is None else f"{simulator:.3f}",
        "reason": row.reason or None,
    }
    if not row.source.simulator:
        del cells[SIMULATOR_RATIO]
    return cells


def _named(settings: Settings) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())


def _shown(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return count(value) if isinstance(value, int) else value


SECTION = Section(160, "gpu-readings", "GPUs that others measured", _contents, of_all=True)
