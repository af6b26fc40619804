"""Count the titles of a page's charts again from the Parquet files of its results.

PYTHONPATH=tests:tests/report python tests/report/recount_titles.py [results]
"""

import html
import re
import sys
from pathlib import Path

from test_titles import check

from modelbudget.report.page_results import Results

TITLE = re.compile(r'<figure id="?([\w-]+)"?>\s*<figcaption>\s*<h3><a[^>]*>(.*?)</a>', re.DOTALL)
OTHERS = ("frontier", "allocator-overhead", "by-layout")
"""Charts of other tables than the comparison, and of which no test counts the title alone."""
ENOUGH = 20


def main(folder: str = "results") -> None:
    page = (Path(folder) / "report.html").read_text(encoding="utf-8")
    shown = {
        name: html.unescape(title).replace("\u00a0", " ") for name, title in TITLE.findall(page)
    }
    counted = []
    measured = sorted(Path(folder).glob("*/comparison.parquet"))
    files = [
        file
        for made in measured
        for file in (made.parent / "sweep.json", *made.parent.glob("*.parquet"))
    ]
    for sweep in Results.read(Path(folder), files).sweeps:
        for name in sweep.charts():
            title = shown.get(f"{sweep.name}-{name}")
            if title and name not in OTHERS:
                counted += [name] if check(sweep, name, title) else []
    print(f"{len(counted)} titles hold")
    if len(counted) < ENOUGH:
        sys.exit(f"at least {ENOUGH} were expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
