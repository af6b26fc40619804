"""Full tables that travel inside the page, for a report that is sent without its folder."""

import base64
import gzip

from modelbudget.report.results import SweepResult
from modelbudget.spreadsheet import csv

MOST_BYTES = 100_000
"""A table that stays larger than this when compressed is only the file beside the page."""


def carried(sweeps: list[SweepResult]) -> dict[str, str]:
    """Each sweep's comparison.csv, compressed and as text, as far as it is small."""
    # mtime: equal tables make equal pages.
    packed = {
        sweep.name: gzip.compress(csv(sweep.comparison).encode(), mtime=0) for sweep in sweeps
    }
    return {
        name: base64.b64encode(table).decode()
        for name, table in packed.items()
        if len(table) <= MOST_BYTES
    }
