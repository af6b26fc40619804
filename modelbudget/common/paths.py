"""Paths of the pipeline, relative to the working directory of a run."""

import os
import re
from pathlib import Path

_INSTALLED = Path(__file__).parents[1] / "pipeline"
HOME = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2]
"""Folder with `configs`, `workflow` and `scripts`: the checkout, or, of an installed wheel, the
folder that pyproject.toml copies them to."""
CONFIGS = HOME / "configs"
"""Folder of the data that the library itself reads, whatever the working directory."""


def own_or_shipped(path: Path) -> Path:
    """Return a path of the working directory if it exists, else the same in `HOME`.

    A run in another folder (a module of another workflow, `modelbudget sweep`) reads the shipped
    models, unless it has its own.
    """
    return path if path.exists() else HOME / path


SWEEPS = Path("configs/sweeps")
MODELS = own_or_shipped(Path("configs/models"))
ACCELERATORS = own_or_shipped(Path("configs/accelerators.yaml"))
RESULTS = Path("results")
MEASUREMENTS = RESULTS / "measurements"
REFERENCE_COUNTS = RESULTS / "reference_counts"
REFERENCE_TRACES = RESULTS / "reference_traces"
CHECKSUMS = RESULTS / ".checksums"
ORPHANS = ".orphans"
"""Folder in that of results with those of sweeps whose file is gone."""
STARTED_IN = "MODELBUDGET_STARTED_IN"
"""Environment variable with the folder where a run in another folder was started."""
RECORDS = RESULTS / ".records"
"""Snakemake's records of how results were made."""


def python_path(folder: Path | str) -> str:
    """Return a PYTHONPATH with which a process imports from a folder before all others."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def failed_at(sweep: str) -> Path:
    """Return the file that has the time of the last failure to measure or count a model."""
    return RESULTS / sweep / ".failed"


def files_in(folder: Path) -> list[Path]:
    """Return every file below a folder that is not hidden, in the same order on every machine."""
    hidden = re.compile(r"(^|/)(\.|__pycache__)")
    inside = (path for path in folder.rglob("*") if path.is_file())
    return sorted(p for p in inside if not hidden.search(p.relative_to(folder).as_posix()))
