"""What the pipeline left behind, as the page takes it."""

from typing import NamedTuple

import polars as pl

from modelbudget.catalogue.models import Catalogue
from modelbudget.report.charts.budget import budget
from modelbudget.report.charts.headline import largest
from modelbudget.sweep.derive import named_architecture


class SweepResult(NamedTuple):
    """What a sweep left in its folder: sweep.json, its tables, and its chart specs by name.

    `zoo` is there where the sweep holds every named model, `fit` where it asks what fits.
    """

    summary: dict
    points: pl.DataFrame
    comparison: pl.DataFrame
    charts: dict[str, dict]
    zoo: pl.DataFrame | None = None
    fit: pl.DataFrame | None = None

    @property
    def name(self) -> str:
        return self.summary["name"]

    def of_point(self, point: dict) -> pl.DataFrame:
        """The comparison's rows of one point."""
        return self.comparison.filter(pl.col("point") == point["point"])


class PredictedResult(NamedTuple):
    """What a sweep without measurements left: sweep.json, and its chart specs by name."""

    summary: dict
    charts: dict[str, dict]

    @property
    def name(self) -> str:
        return self.summary["name"]


class Results(NamedTuple):
    """All that a page can show; what is None was not made and is left out.

    `on_request` has name and title of the sweeps that run only when they are named. `printed` has
    modules as torch prints them, `swept` module trees, by the digest of their architecture. A model
    that could not be built is {"failure": the reason} in these and `trees`.
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


def ordered(sweeps: list) -> list:
    """As the page shows them."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))


def opening(sweeps: list[SweepResult]) -> tuple[int, pl.DataFrame] | None:
    """Whose model opens the page, and its budget: the one that a sweep names as its headline, if
    it could be measured, else the largest that was.
    """
    for place, sweep in enumerate(sweeps):
        if sweep.summary["headline"]:
            table = budget(sweep.comparison).filter(pl.col("label") == sweep.summary["headline"])
            if not table.is_empty():
                return place, table
    return largest([sweep.comparison for sweep in sweeps])


def known_models(catalogue: Catalogue) -> dict[str, str]:
    """Digest of each named model's architecture → the name that people know it by."""
    named = [base for base in catalogue.bases.values() if base.model is not None]
    # Models that are alike go by the name of the first.
    return {named_architecture(base).digest(): base.label for base in reversed(named)}
