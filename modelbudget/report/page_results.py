"""The results that the page shows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.compare.class_verdict import values_of_classes
from modelbudget.report.charts.chart_files import specs_of
from modelbudget.report.charts.chart_tables import SweepTables, grouped
from modelbudget.report.charts.predicted_ranges import predicted_charts
from modelbudget.report.charts.sweep_charts import sweep_charts
from modelbudget.sweeps.sweep_file import SOLVED_TABLES

Drawing = Callable[[], dict[str, dict]]
"""Waits for the charts of a sweep, and returns their specs by name."""


class SweepResult(NamedTuple):
    """Results of a sweep: sweep.json, its tables, and its charts.

    `zoo` is set if the sweep has all published models, `fit` and `layouts` if it has a field of
    that name, `frontier` if it has `solve`, `classes` if classes of `transformers`
    are traced or counted.
    """

    summary: dict
    points: pl.DataFrame
    comparison: pl.DataFrame
    charts: Drawing
    zoo: pl.DataFrame | None = None
    fit: pl.DataFrame | None = None
    classes: pl.DataFrame | None = None
    layouts: pl.DataFrame | None = None
    frontier: pl.DataFrame | None = None

    @property
    def name(self) -> str:
        return self.summary["name"]


class PredictedResult(NamedTuple):
    """Results of a sweep without measurements: sweep.json, and its charts."""

    summary: dict
    charts: Drawing

    @property
    def name(self) -> str:
        return self.summary["name"]


def _content(file: Path) -> Any:
    if file.suffix == ".parquet":
        return pl.read_parquet(file)
    return json.loads(file.read_text(encoding="utf-8"))


def _contents(files: Iterable[Path]) -> dict[str, Any]:
    """Return the contents of a sweep's files by name without suffix."""
    return {file.stem: _content(file) for file in files}


def charts_of(files: Iterable[Path]) -> dict[str, dict]:
    """Draw the charts of the sweep that has these files; return their specs by name."""
    contents = _contents(files)
    if "points" not in contents:
        return specs_of(predicted_charts(contents["totals"], contents["shares"]))
    summary = contents["sweep"]
    tables = SweepTables(
        summary["axes"],
        contents["comparison"],
        accelerators(ACCELERATORS),
        summary=summary,
        solved=[contents[name] for name in SOLVED_TABLES if name in contents],
    )
    return specs_of(sweep_charts(tables))


class Results(NamedTuple):
    """All results of a page.

    `parts` has the content of each file of results/ that belongs to no sweep; sections whose files
    are missing are left out.
    """

    sweeps: list[SweepResult]
    predicted: Sequence[PredictedResult] = ()
    parts: Mapping[str, Any] = {}

    @classmethod
    def read(
        cls,
        folder: Path,
        files: Iterable[str],
        draw: Callable[[list[Path]], Drawing] = lambda files: cache(partial(charts_of, files)),
    ) -> "Results":
        """Read files of a folder. `draw` begins to draw the charts of a sweep's files.

        Files of a sweep lie in one folder with its sweep.json.
        """
        sweeps, predicted, parts = [], [], {}
        for place, of_folder in grouped(map(Path, files), lambda file: file.parent).items():
            names = {file.name for file in of_folder}
            if "points.parquet" in names:
                sweeps.append(_sweep(of_folder, draw(of_folder)))
            elif "sweep.json" in names:
                summary = _content(place / "sweep.json")
                predicted.append(PredictedResult(summary, draw(of_folder)))
            else:
                parts |= {file.relative_to(folder).as_posix(): _content(file) for file in of_folder}
        return cls(sweeps, predicted, parts)


def _sweep(files: Iterable[Path], charts: Drawing) -> SweepResult:
    contents = _contents(files)
    # The table of all published models has the counts of their classes.
    counts = None if "zoo" in contents else contents.get("reference_counts")
    classes = values_of_classes(contents.get("reference_traces"), counts)
    tables = {name: contents[name] for name in SweepResult._fields if name in contents}
    return SweepResult(summary=contents["sweep"], charts=charts, classes=classes, **tables)


def ordered(sweeps: list) -> list:
    """Return the sweeps in the order of the page."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))
