"""The results that the page shows."""

import json
from pathlib import Path
from typing import NamedTuple

import polars as pl

from modelbudget.catalogue.models import Catalogue
from modelbudget.report.charts.budget import budget
from modelbudget.report.charts.headline import largest
from modelbudget.sweeps.derive import named_architecture


class SweepResult(NamedTuple):
    """Results of a sweep: sweep.json, its tables, and its chart specs by name.

    `zoo` is set if the sweep has all published models, `fit` and `layouts` if it has a field of
    that name, `frontier` and `published` if it has `solve`, `classes` if classes of `transformers`
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
    published: pl.DataFrame | None = None

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


class StepTrace(NamedTuple):
    """Two traced training steps of a model: step.json, and the table of allocations."""

    about: dict
    allocations: pl.DataFrame

    @classmethod
    def read(cls, about: str, allocations: str) -> "StepTrace":
        """Read both files of a trace."""
        return cls(json.loads(Path(about).read_text("utf-8")), pl.read_parquet(allocations))


class Results(NamedTuple):
    """All results of a page; parts that are None are left out.

    `shared_step` is `step` on one of several devices. `on_request` has name and title of the sweeps
    with `default: false`. `printed` has modules as torch prints them, `walkthroughs` what
    `measurement/walkthrough.py` finds of the same models and `swept` has module trees, all three by
    digest of the architecture. A model that could not be built is {"failure": the reason} in these
    and in `trees`.
    """

    sweeps: list[SweepResult]
    ledger: pl.DataFrame | None = None
    surgery: pl.DataFrame | None = None
    provenance: dict | None = None
    trees: list[dict] | None = None
    printed: dict[str, str | dict] | None = None
    swept: dict[str, dict] | None = None
    predicted: list[PredictedResult] | None = None
    on_request: list[tuple[str, str]] | None = None
    step: StepTrace | None = None
    shared_step: StepTrace | None = None
    walkthroughs: dict[str, dict] | None = None


def ordered(sweeps: list) -> list:
    """Return the sweeps in the order of the page."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))


def headline_model(sweeps: list[SweepResult]) -> tuple[int, pl.DataFrame] | None:
    """Return the index of a sweep, and the budget of its model that opens the page.

    It is the model that a sweep has as `headline`, or else the largest measured one.
    """
    for place, sweep in enumerate(sweeps):
        if sweep.summary["headline"]:
            table = budget(sweep.comparison).filter(pl.col("label") == sweep.summary["headline"])
            if not table.is_empty():
                return place, table
    return largest([sweep.comparison for sweep in sweeps])


def known_models(catalogue: Catalogue) -> dict[str, str]:
    """Map the digest of each published model's architecture to its label."""
    named = [base for base in catalogue.bases.values() if base.model is not None]
    # Models with the same architecture get the label of the first.
    return {named_architecture(base).digest(): base.label for base in reversed(named)}
