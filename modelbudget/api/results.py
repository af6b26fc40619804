"""Results of finished sweeps as frames."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from modelbudget.api.arguments import PATH, TEXT, TEXTS, checked, whole_number
from modelbudget.api.find import CATALOGUE
from modelbudget.api.frames import Frames, html_table
from modelbudget.catalogue.accelerators import accelerators
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError, needed
from modelbudget.common.paths import CONFIGS, HOME, RESULTS, STARTED_IN, SWEEPS, python_path
from modelbudget.sweeps.read import read

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SNAKEMAKE = """
import gc, json, sys
gc.disable()
from snakemake.cli import main
main(json.load(sys.stdin))
"""
"""Snakemake's command, which imports its packages while it waits for its arguments.

Collections of garbage would take a third of the time of its imports.
"""


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
        return [*self._folders("comparison.parquet")]

    def predicted(self) -> list[str]:
        """Return the names of the sweeps that were predicted and not measured."""
        return [*self._folders("predictions")]

    def _folders(self, table: str, names: Collection[str] = ()) -> dict[str, Path]:
        """Return the folders with a table of some sweeps, or of all. Raises InputError."""
        known = {path.parent.name: path.parent for path in sorted(self.folder.glob(f"*/{table}"))}
        if unknown := [name for name in names if name not in known]:
            allowed = ", ".join(known) or "none has run"
            raise InputError([f"{self.folder}: no sweep {unknown[0]!r} (allowed: {allowed})"])
        return {name: known[name] for name in names or known}

    @checked(sweeps=TEXTS)
    def comparison(self, *sweeps: str) -> pl.DataFrame:
        """Return point × component × quantity of the named sweeps, or of all.

        Columns as in docs/results.md, after `sweep`; fields that a sweep does not vary are null.
        Raises InputError for a name without results.
        """
        import polars as pl

        table = "comparison.parquet"
        frames = [
            pl.read_parquet(folder / table).select(pl.lit(name).alias("sweep"), pl.all())
            for name, folder in self._folders(table, sweeps).items()
        ]
        return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()

    @checked(sweep=TEXT)
    def predictions(self, sweep: str) -> pl.LazyFrame:
        """Return one row for each combination of a sweep that was predicted and not measured.

        They may be a hundred million: what is needed of them is read with `collect()`. Columns as
        in docs/results.md. Raises InputError for a name without predictions.
        """
        import polars as pl

        (folder,) = self._folders("predictions", [sweep]).values()
        return pl.scan_parquet(folder / "predictions" / "*.parquet")

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
        names = ", ".join([*self.sweeps(), *self.predicted()])
        return f"<Results {self.folder}: {names or 'nothing measured'}>"


@checked(folder=PATH)
def results(folder: str | Path = RESULTS) -> Results:
    """Read the results in a folder `results/`. Raises InputError if it is not there."""
    path = Path(folder)
    if not os.path.isdir(path):  # False for a name that no file can have
        raise InputError([f"{path}: no such folder; allowed: the results/ of a run"])
    opened = Results(path.resolve())
    if not (opened.report.is_file() or opened.sweeps() or opened.predicted()):
        raise InputError([f"{path}: no results in it; allowed: the results/ of a run"])
    return opened


@checked(file=PATH, folder=PATH.or_none, cores=whole_number(1, 2**16), module=TEXT.or_none)
def sweep(
    file: str | Path, folder: str | Path | None = None, cores: int = 2, module: str | None = None
) -> Results:
    """Run a sweep file and return its results.

    `folder`, by default one beside the file with its name, gets the file, its config.json files
    and `results/` with the report. A second run recomputes what has changed. `module`: the function
    whose code the file may run, `package.file:function`; several with commas. Raises InputError for
    mistakes in the file, if Snakemake is not installed or if the run fails.
    """
    needed("sweeps", "workflow", "snakemake")
    from modelbudget.workflow.chosen_sweeps import plan

    path = Path(file)
    if path.is_dir():
        raise InputError([f"{path}: a folder; allowed: the file of one sweep, {path}/NAME.yaml"])
    command = [sys.executable, "-c", SNAKEMAKE]
    # Its jobs import the library that is running.
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(Path(__file__).parents[2]),
        STARTED_IN: os.getcwd(),
    }
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as run:
        try:
            # Processes that check the sweep would hold the pipe open, whose end Snakemake awaits.
            os.register_at_fork(after_in_child=cast(Any, run.stdin).close)
            checked = read(path, Catalogue(CATALOGUE))
            plan(checked, accelerators(CONFIGS / "accelerators.yaml"))
            place = Path(folder) if folder else path.with_suffix("")
            _prepare(place, path, checked.files)
            arguments = ["--snakefile", str(HOME / "Snakefile"), "--directory", str(place)]
            arguments += ["--cores", str(cores), "--config", f"sweeps={path.stem}"]
            arguments += [f"modules={module}"] * (module is not None)
            run.communicate(json.dumps(arguments).encode())
        except BaseException:  # a mistake in the file, Ctrl-C
            run.kill()
            raise
    if run.returncode:
        raise InputError([f"{path}: the run failed with exit code {run.returncode}; see above"])
    return Results(place / RESULTS)


def _prepare(place: Path, path: Path, configs: list[Path]) -> None:
    """Write the folder of a run: the sweep and its files; models are the shipped ones."""
    sweeps = place / SWEEPS
    sweeps.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, sweeps / f"{path.stem}.yaml")
    for config in configs:
        copy = sweeps / config.relative_to(path.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(config, copy)
