"""Time a run from an installed environment to the report, by number of models.

    python benchmarks/scale.py [cores] [points …]

GPT-2, Llama and PaLM shapes of 2 to 118 layers, all instantiated, counted and compared. Each run is
from scratch in a copy of the project. `measuring` is the time of the process pool; jobs that need
no measurement run at the same time. `the rest` is the remaining wall time: start-up, planning,
tables, charts, page. `CPU` is the processor time of all processes.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from pipeline import copy_of_project

SWEEP = """
title: {n:,} models
question: GPT-2, Llama and PaLM shapes, 2 to 118 layers.
grid:
  base: [gpt-2, llama-3, palm]
  n_layer: {{from: 2, to: 118, steps: {n_layer}}}
  d_model: {{from: 1024, to: 18432, steps: {d_model}, multiple_of: 1024}}
  n_vocab: [32000, 50257, 256000]
  tied: [true, false]
fixed: {{d_head: 128}}
derive: {{n_head: d_model / 128, d_ff: 4 * d_model}}
measure: {{device: meta}}
"""
STEPS = {100: (3, 2), 1_000: (7, 8), 10_000: (31, 18)}
"""Steps of n_layer and d_model. Bases, vocabularies and tying multiply them by 3 × 3 × 2 = 18."""


def main(cores: str = "8", *sizes: str) -> None:
    print("models   wall  measuring  the rest         CPU  models/s  report")
    for size in map(int, sizes or STEPS):
        n_layer, d_model = STEPS[size]
        text = SWEEP.format(n=18 * n_layer * d_model, n_layer=n_layer, d_model=d_model)
        with tempfile.TemporaryDirectory() as scratch:
            project = copy_of_project(Path(scratch), {"scale.yaml": text})
            began, used = time.perf_counter(), cpu()
            subprocess.run(
                [sys.executable, "-m", "snakemake", "--cores", cores, "--quiet", "all"],
                cwd=project,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wall = time.perf_counter() - began
            print_row(project / "results", wall, cpu() - used)


def cpu() -> float:
    """Return the processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_row(results: Path, wall: float, used: float) -> None:
    verdict = json.loads((results / "verdict.json").read_text())["line"]
    models = json.loads((results / "scale" / "sweep.json").read_text())["points"]
    inside = measuring((results / "logs" / "measure-1-of-1.log").read_text())
    size = (results / "report.html").stat().st_size / 1e6
    print(
        f"{models:6,} {wall:5.1f} s {inside:8.1f} s {wall - inside:5.1f} s "
        f"({(wall - inside) / wall:.0%}) {used:5.1f} s {models / wall:5.0f}   "
        f"{size:.2f} MB; {verdict}"
    )


def measuring(log: str) -> float:
    """Return the seconds from the start of the pool to its end."""
    times = dict(re.findall(r"^(\S+ \S+) INFO .*?(processes, room|models: )", log, re.MULTILINE))
    began, ended = (datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f") for when in times)
    return (ended - began).total_seconds()


if __name__ == "__main__":
    main(*sys.argv[1:])
