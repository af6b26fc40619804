"""Results of sweeps whose files were deleted or renamed."""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from modelbudget.common.paths import ORPHANS, RESULTS


def set_aside(sweeps: Collection[str], results: Path = RESULTS) -> Iterator[str]:
    """Move the results of each sweep without a file to `results/.orphans`, and say so.

    Nothing reads that folder. Measurements stay in their cache, so that a renamed sweep is not
    measured again.
    """
    for summary in sorted(results.glob("*/sweep.json")):
        folder = summary.parent
        if folder.name not in sweeps:
            aside = results / ORPHANS / folder.name
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            yield f"{folder}: its sweep file is gone; moved to {aside}"
