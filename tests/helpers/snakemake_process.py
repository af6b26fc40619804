"""Snakemake without the second that importing it takes: a server imports it, and forks each run.

The server imports nothing of the project, of which each run has its own copy.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["snakemake.cli", "polars", "psutil", "pydantic", "rich.progress"])


def environment() -> dict[str, str]:
    """Environment variables without those of the test run."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}


def snakemake(folder: Path, arguments: tuple[str, ...], timeout_s: int):
    """Run `python -m snakemake` with these arguments in a folder.

    Return what subprocess.run returns.
    """
    with tempfile.TemporaryDirectory() as scratch:
        printed = [Path(scratch) / name for name in ("stdout", "stderr")]
        run = SERVER.Process(target=_run, args=(folder, arguments, environment(), printed))
        run.start()
        run.join(timeout_s)
        if run.exitcode is None:
            run.kill()
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        texts = [path.read_text(encoding="utf-8") for path in printed]
    return subprocess.CompletedProcess(arguments, run.exitcode, *texts)


def _run(folder: Path, arguments: tuple[str, ...], of_run: dict, printed: list[Path]) -> None:
    from snakemake.cli import main

    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(of_run)
    os.chdir(folder)
    of_tests = {str(ROOT), str(ROOT / "tests")}
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in of_tests)]
    sys.argv[1:] = arguments
    main()
