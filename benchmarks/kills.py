"""Kill runs with `kill -9` at twenty random moments and check that the next run recovers.

    python benchmarks/kills.py [times] [sweeps]

Each time: a fresh copy of the project, a run that is killed with all its processes, then the steps
of the README (`snakemake --unlock`, and the run again). The results are compared byte for byte with
those of an undisturbed run, except those that have times.
"""

import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from pipeline import copy_of_project

SNAKEMAKE = [sys.executable, "-m", "snakemake"]
MAY_DIFFER = {"logs", "provenance.json", "provenance.json.json", ".records"}
"""What has times: logs, how results were made with its checksum, and Snakemake's records."""


def main(times: str = "20", *sweeps: str) -> None:
    run = [*SNAKEMAKE, "--cores", "8", "--config", f"sweeps={','.join(sweeps or ['hybrid'])}"]
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        undisturbed = results_of(Path(scratch), run, None)
        whole = time.perf_counter() - began
        print(f"undisturbed: {whole:.1f} s, {len(undisturbed)} files")
        different = 0
        for number in range(1, int(times) + 1):
            after = moments.uniform(0, whole)
            found = results_of(Path(scratch), run, after)
            names = [
                name
                for name in sorted(undisturbed.keys() | found.keys())
                if undisturbed.get(name) != found.get(name)
            ]
            different += bool(names)
            print(f"{number:3}. killed after {after:5.1f} s: {names or 'same bytes'}")
    sys.exit(f"{different} of {times} runs gave other results" if different else 0)


def results_of(scratch: Path, run: list[str], killed_after: float | None) -> dict[str, bytes]:
    """Run from scratch, killed and resumed once if `killed_after`; return results by file."""
    project = copy_of_project(scratch)
    if killed_after is not None:
        kill(subprocess.Popen(run, cwd=project, **QUIET), killed_after)
        subprocess.run([*SNAKEMAKE, "--unlock"], cwd=project, check=True, **QUIET)
    subprocess.run(run, cwd=project, check=True, **QUIET)
    results = project / "results"
    return {
        path.relative_to(results).as_posix(): path.read_bytes()
        for path in results.rglob("*")
        if path.is_file() and not {*path.relative_to(results).parts} & MAY_DIFFER
    }


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def kill(run: subprocess.Popen, after: float) -> None:
    """Kill the run and all its descendants after some seconds."""
    time.sleep(after)
    with suppress(psutil.NoSuchProcess):  # the run may have ended before
        root = psutil.Process(run.pid)
        for process in (*root.children(recursive=True), root):
            process.kill()
    run.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
