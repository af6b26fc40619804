"""Time a run from an installed environment to the report: wall time, stages, models per second.

    python benchmarks/pipeline.py [cores] [sweeps]

Runs the shipped sweeps, or the named ones, from scratch in a copy of the project. Stages overlap,
so their seconds add up to more than the wall time.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import polars as pl

ROOT = Path(__file__).parent.parent
IGNORED = shutil.ignore_patterns(
    ".git", ".*venv", ".snakemake", "results", ".*_cache", "__pycache__"
)


def main(cores: str = "8", *sweeps: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        project = copy_of_project(Path(scratch))
        start = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", cores, "--quiet", "all"]
            + (["--config", f"sweeps={','.join(sweeps)}"] if sweeps else []),
            cwd=project,
        )
        wall = time.perf_counter() - start
        if run.returncode:
            sys.exit(run.returncode)
        report(project, wall)


def copy_of_project(scratch: Path, sweeps: dict[str, str] | None = None) -> Path:
    """Copy the project without results; `sweeps` (file name → text) replaces its sweeps."""
    project = scratch / "project"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT, project, ignore=IGNORED)
    if sweeps is not None:
        folder = project / "configs" / "sweeps"
        shutil.rmtree(folder)
        folder.mkdir()
        for name, text in sweeps.items():
            (folder / name).write_text(text, encoding="utf-8")
    return project


def report(project: Path, wall: float) -> None:
    seconds, jobs = stages(project / ".snakemake" / "metadata")
    points = sum(
        pl.scan_parquet(path).select("point").collect().height
        for path in (project / "results").glob("*/points.parquet")
    )
    print(f"{points:,} points in {wall:.1f} s from start to report, {points / wall:.0f} models/s")
    for rule, spent in seconds.most_common():
        print(f"  {rule:<16} {spent:6.1f} s in {jobs[rule]:2} jobs")
    print(f"  measuring alone: {points / seconds['measure']:.0f} models/s")


def stages(metadata: Path) -> tuple[Counter, Counter]:
    """Return seconds and jobs by rule, from Snakemake's metadata of each output."""
    spans = {}
    for path in metadata.rglob("*"):
        if path.is_file():
            record = json.loads(path.read_text())
            # The outputs of one job share its log and its times.
            spans[(record["rule"], tuple(record["log"]))] = record["endtime"] - record["starttime"]
    seconds, jobs = Counter(), Counter()
    for (rule, _), span in spans.items():
        seconds[rule] += span
        jobs[rule] += 1
    return seconds, jobs


if __name__ == "__main__":
    main(*sys.argv[1:])
