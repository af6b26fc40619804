"""Where the pipeline reads and writes, relative to the folder of the Snakefile."""

import re
from pathlib import Path

SWEEPS = Path("configs/sweeps")
MODELS = Path("configs/models")
ACCELERATORS = Path("configs/accelerators.yaml")
RESULTS = Path("results")
MEASUREMENTS = RESULTS / "measurements"
WITNESSES = RESULTS / "witnesses"
CHECKSUMS = RESULTS / ".checksums"
SHARDS = RESULTS / ".shards"
"""Parts of what a sweep measures, removed when they are put together."""


def failed_at(sweep: str) -> Path:
    """Touched when a model of the sweep could not be measured, or its class not be counted."""
    return RESULTS / sweep / ".failed"


def files_in(folder: Path) -> list[Path]:
    """Every file in a folder and the folders below it that is not hidden, in one order on every
    machine.
    """
    hidden = re.compile(r"(^|/)(\.|__pycache__)")
    inside = (path for path in folder.rglob("*") if path.is_file())
    return sorted(p for p in inside if not hidden.search(p.relative_to(folder).as_posix()))
