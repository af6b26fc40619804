"""What the pipeline left behind, as the page takes it."""

from typing import NamedTuple

import polars as pl

from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture


class SweepResult(NamedTuple):
    """What a sweep left in its folder: sweep.json, two tables, and its chart specs by name."""

    summary: dict
    points: pl.DataFrame
    comparison: pl.DataFrame
    charts: dict[str, dict]

    @property
    def name(self) -> str:
        return self.summary["name"]


class Results(NamedTuple):
    """All that a page can show; what is None was not made and is left out."""

    sweeps: list[SweepResult]
    ledger: pl.DataFrame | None = None
    surgery: pl.DataFrame | None = None
    provenance: dict | None = None


def ordered(sweeps: list[SweepResult]) -> list[SweepResult]:
    """As the page shows them."""
    return sorted(sweeps, key=lambda sweep: (sweep.summary["order"], sweep.name))


def known_models(catalogue: Catalogue) -> dict[str, str]:
    """Digest of each named model's architecture → the name that people know it by."""
    named = [base for base in catalogue.bases.values() if base.model is not None]
    # Models that are alike go by the name of the first.
    return {named_architecture(base).digest(): base.label for base in reversed(named)}
