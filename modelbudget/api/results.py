"""Results of finished sweeps as frames."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from modelbudget.api.arguments import PATH, TEXTS, checked
from modelbudget.api.frames import Frames, html_table
from modelbudget.common.errors import InputError
from modelbudget.common.extras import needed
from modelbudget.common.paths import RESULTS

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Results(Frames):
    """The results of all sweeps in a folder `results/`."""

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def report(self) -> Path:
        """The page with everything."""
        return self.folder / "report.html"

    def sweeps(self) -> list[str]:
        """Return the names of the sweeps that were measured."""
        tables = self.folder.glob("*/comparison.parquet")
        return sorted(path.parent.name for path in tables)

    @checked(sweeps=TEXTS)
    def comparison(self, *sweeps: str) -> pl.DataFrame:
        """Return point × component × quantity of the named sweeps, or of all.

        Columns as in docs/results.md, after `sweep`; fields that a sweep does not vary are null.
        Raises InputError for a name without results.
        """
        import polars as pl

        known = self.sweeps()
        if unknown := [name for name in sweeps if name not in known]:
            allowed = ", ".join(known) or "none has run"
            raise InputError([f"{self.folder}: no sweep {unknown[0]!r} (allowed: {allowed})"])
        frames = [
            pl.read_parquet(self.folder / name / "comparison.parquet").select(
                pl.lit(name).alias("sweep"), pl.all()
            )
            for name in sweeps or known
        ]
        return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()

    def rows(self) -> list[dict]:
        """Return `comparison` of all sweeps as rows."""
        return self.comparison().to_dicts()

    def to_polars(self) -> pl.DataFrame:
        """Return `comparison` of all sweeps as a Polars frame."""
        return self.comparison()

    def to_pandas(self) -> pd.DataFrame:
        """Return `comparison` of all sweeps as a pandas frame.

        Raises InputError if pandas or what Polars converts with is not installed.
        """
        needed("frames of pandas", "report", "pandas", "pyarrow")
        return self.comparison().to_pandas()

    def _repr_html_(self) -> str:
        counted = [
            {"sweep": name, "comparisons": int(frame["agrees"].count()),
             "agree": int(frame["agrees"].sum())}
            for name in self.sweeps()
            for frame in (self.comparison(name),)
        ]  # fmt: skip
        return html_table(f"Results of {self.folder}", counted)

    def __repr__(self) -> str:
        return f"<Results {self.folder}: {', '.join(self.sweeps())}>"


@checked(folder=PATH)
def results(folder: str | Path = RESULTS) -> Results:
    """Read the results in a folder `results/`. Raises InputError if it is not there."""
    path = Path(folder)
    if not os.path.isdir(path):  # False for a name that no file can have
        raise InputError([f"{path}: no such folder; allowed: the results/ of a run"])
    opened = Results(path.resolve())
    if not opened.report.is_file() and not opened.sweeps():
        raise InputError([f"{path}: no results in it; allowed: the results/ of a run"])
    return opened
