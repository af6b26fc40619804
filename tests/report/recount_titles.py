"""Count the titles of a page's charts again from the Parquet files of its results.

PYTHONPATH=tests:tests/report python tests/report/recount_titles.py [results]
"""

import html
import re
import sys
from pathlib import Path

import polars as pl
from test_titles import check

from modelbudget.common.files import read_json
from modelbudget.report.page_results import SweepResult

TITLE = re.compile(r'<figure id="?([\w-]+)"?>\s*<figcaption>\s*<h3><a[^>]*>(.*?)</a>', re.DOTALL)
OTHERS = ("one-step", "frontier", "devices",
          "allocator-overhead", "by-layout")  # fmt: skip
"""Charts of other tables than the comparison, and of which no test counts the title alone."""
ENOUGH = 20


def main(folder: str = "results") -> None:
    page = (Path(folder) / "report.html").read_text(encoding="utf-8")
    shown = {
        name: html.unescape(title).replace("\u00a0", " ") for name, title in TITLE.findall(page)
    }
    counted = []
    for file in sorted(Path(folder).glob("*/comparison.parquet")):
        sweep, summary = file.parent.name, read_json(file.parent / "sweep.json")
        points = pl.read_parquet(file.parent / "points.parquet")
        found = SweepResult(summary, points, pl.read_parquet(file), {})
        for name, _ in read_json(file.parent / "charts.json"):
            title = shown.get(f"{sweep}-{name}")
            if title and name not in OTHERS:
                counted += [name] if check(found, name, title) else []
    print(f"{len(counted)} titles hold")
    if len(counted) < ENOUGH:
        sys.exit(f"at least {ENOUGH} were expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
