"""Write the README's picture, docs/parameters.svg, from results/ (`make picture`)."""

import json
from pathlib import Path

import polars as pl

from modelbudget.report.model_stack import picture
from modelbudget.report.page_results import SweepResult
from modelbudget.report.sections.picture_to_scale import two_stacks


def sweep(folder: Path) -> SweepResult:
    """Read what the picture needs of a sweep's results."""
    points, comparison = (
        pl.read_parquet(folder / f"{n}.parquet") for n in ("points", "comparison")
    )
    return SweepResult(
        json.loads((folder / "sweep.json").read_text("utf-8")), points, comparison, dict
    )


if __name__ == "__main__":
    stacks = two_stacks([sweep(Path("results/named-models"))])
    assert stacks, "results/named-models has no headline"
    Path("docs/parameters.svg").write_text(picture(stacks), encoding="utf-8")
