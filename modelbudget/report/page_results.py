"""The results that the page shows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS
from modelbudget.compare.class_verdict import values_of_classes
from modelbudget.report.charts.chart_files import specs_of
from modelbudget.report.charts.predicted_ranges import predicted_charts
from modelbudget.report.charts.sweep_charts import sweep_charts
from modelbudget.report.charts.sweep_tables import SweepTables
from modelbudget.sweeps.sweep_file import SOLVED_TABLES


class SweepResult(NamedTuple):
    """Results of a sweep: sweep.json, its tables, and its chart specs by name.

    `zoo` is set if the sweep has all published models, `fit` and `layouts` if it has a field of
    that name, `frontier` if it has `solve`, `classes` if classes of `transformers`
    are traced or counted.
    """

    summary: dict
    points: pl.DataFrame
    comparison: pl.DataFrame
    charts: dict[str, dict]
    zoo: pl.DataFrame | None = None
    fit: pl.DataFrame | None = None
    classes: pl.DataFrame | None = None
    layouts: pl.DataFrame | None = None
    frontier: pl.DataFrame | None = None

    @property
    def name(self) -> str:
        return self.summary["name"]

    def of_point(self, point: dict) -> pl.DataFrame:
        """Return the comparison's rows of one point."""
        return self.comparison.filter(pl.col("point") == point["point"])


class PredictedResult(NamedTuple):
    """Results of a sweep without measurements: sweep.json, and its chart specs by name."""

    summary: dict
    charts: dict[str, dict]

    @property
    def name(self) -> str:
        return self.summary["name"]


class Results(NamedTuple):
    """All results of a page.

    `parts` has the content of each file of results/ that belongs to no sweep; sections whose files
    are missing are left out. `on_request` has name and title of the sweeps with `default: false`.
    """

    sweeps: list[SweepResult]
    predicted: Sequence[PredictedResult] = ()
    parts: Mapping[str, Any] = {}
    on_request: Sequence[tuple[str, str]] = ()

    @classmethod
    def read(
        cls, folder: Path, files: Iterable[str], on_request: Sequence[tuple[str, str]]
    ) -> "Results":
        """Read files of a folder, and draw the charts.

        Files of a sweep lie in one folder with its sweep.json.
        """
        by_folder: dict[Path, dict[str, Any]] = {}
        for file in map(Path, files):
            by_folder.setdefault(file.parent, {})[file.name] = _READERS[file.suffix](file)
        sweeps, predicted, parts = [], [], {}
        for place, contents in by_folder.items():
            if "points.parquet" in contents:
                sweeps.append(_sweep(contents))
            elif "sweep.json" in contents:
                predicted.append(_predicted(contents))
            else:
                of_folder = place.relative_to(folder)
                parts |= {(of_folder / name).as_posix(): of for name, of in contents.items()}
        return cls(sweeps, predicted, parts, on_request)


_READERS: dict[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".parquet": pl.read_parquet,
}


def _sweep(contents: dict[str, Any]) -> SweepResult:
    tables = {
        Path(name).stem: table for name, table in contents.items() if name.endswith(".parquet")
    }
    # The table of all published models has the counts of their classes.
    counts = None if "zoo" in tables else tables.get("reference_counts")
    classes = values_of_classes(tables.get("reference_traces"), counts)
    fields = {name: tables[name] for name in SweepResult._fields if name in tables}
    summary = contents["sweep.json"]
    charts = sweep_charts(
        SweepTables(
            summary["axes"],
            tables["comparison"],
            accelerators(ACCELERATORS),
            summary=summary,
            points=tables["points"],
            traces=tables.get("reference_traces"),
            solved=[tables[name] for name in SOLVED_TABLES if name in tables],
        )
    )
    return SweepResult(summary=summary, charts=specs_of(charts), classes=classes, **fields)


def _predicted(contents: dict[str, Any]) -> PredictedResult:
    charts = predicted_charts(contents["totals.parquet"], contents["shares.parquet"])
    return PredictedResult(contents["sweep.json"], specs_of(charts))


def ordered(sweeps: list) -> list:
    """Return the sweeps in the order of the page."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))
