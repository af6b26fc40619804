"""A sweep without a checkout: the pipeline runs in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from modelbudget.api.arguments import NO_PATH_OR_PATH, PATH, checked, whole_number
from modelbudget.api.find import CATALOGUE
from modelbudget.api.results import Results
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.common.extras import needed
from modelbudget.common.paths import HOME, RESULTS, SWEEPS
from modelbudget.sweeps.read import read


@checked(file=PATH, folder=NO_PATH_OR_PATH, cores=whole_number(1, 2**16))
def sweep(file: str | Path, folder: str | Path | None = None, cores: int = 2) -> Results:
    """Run a sweep file and return its results.

    `folder`, by default one beside the file with its name, gets the file, its config.json files
    and `results/` with the report. A second run recomputes what has changed. Raises InputError for
    mistakes in the file, if Snakemake is not installed or if the run fails.
    """
    needed("sweeps", "workflow", "snakemake")
    path = Path(file)
    checked = read(path, Catalogue(CATALOGUE))
    place = Path(folder) if folder else path.with_suffix("")
    _prepare(place, path, checked.files)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(HOME / "Snakefile")]
    command += ["--directory", str(place), "--cores", str(cores), "--config", f"sweeps={path.stem}"]
    run = subprocess.run(command, env=_environment(), check=False)
    if run.returncode:
        raise InputError([f"{path}: the run failed with exit code {run.returncode}; see above"])
    return Results(place / RESULTS)


def _environment() -> dict[str, str]:
    """Return this process's environment, in which the library that is running is imported."""
    library = str(Path(__file__).parents[2])
    folders = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (library, folders)))}


def _prepare(place: Path, path: Path, configs: list[Path]) -> None:
    """Write the folder of a run: the sweep and its files; models are the shipped ones."""
    sweeps = place / SWEEPS
    sweeps.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, sweeps / f"{path.stem}.yaml")
    for config in configs:
        copy = sweeps / config.relative_to(path.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(config, copy)
