"""`kill -9` of a whole run at twenty random moments: does the next run end as if nothing had been?

    python benchmarks/kills.py [times] [sweeps]

Each time: a fresh copy of the project, a run that is killed with all that it has started, then
what the README says (`snakemake --unlock`, and again). Its results are compared with those of an
undisturbed run, byte for byte, but for logs and provenance.json.
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
MAY_DIFFER = ("logs", "provenance.json")


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
            print(f"{number:3}. killed after {after:5.1f} s: {names or 'the same, every byte'}")
    sys.exit(f"{different} of {times} runs ended otherwise" if different else 0)


def results_of(scratch: Path, run: list[str], killed_after: float | None) -> dict[str, bytes]:
    """The results of a run from scratch, by file; killed once, and taken up again, if so asked."""
    project = copy_of_project(scratch)
    if killed_after is not None:
        kill(subprocess.Popen(run, cwd=project, **QUIET), killed_after)
        subprocess.run([*SNAKEMAKE, "--unlock"], cwd=project, check=True, **QUIET)
    subprocess.run(run, cwd=project, check=True, **QUIET)
    results = project / "results"
    return {
        path.relative_to(results).as_posix(): path.read_bytes()
        for path in results.rglob("*")
        if path.is_file() and not set(path.relative_to(results).parts) & set(MAY_DIFFER)
    }


QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def kill(run: subprocess.Popen, after: float) -> None:
    """The run and all that it has started, wherever it is."""
    time.sleep(after)
    with suppress(psutil.NoSuchProcess):  # it was faster than the undisturbed one
        root = psutil.Process(run.pid)
        for process in (*root.children(recursive=True), root):
            process.kill()
    run.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
