"""Snakemake and the command without the seconds that imports take: a server forks each run.

It forks the processes that run the tests, too (`forked_workers.py`).
The server imports packages, and what the command needs of this checkout. Other runs begin without
that, since they may have a copy of the project.
What vl-convert makes for the page is made once (`converted_once.py`).
With TESTS=all, commands are started as a user's. Jobs always are: the library forks them.
"""

import atexit
import gc
import multiprocessing
import os
import resource
import runpy
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from helpers.converted_once import convert_once

gc.set_threshold(1_000_000)  # the other imports, and what is forked, leave little to collect
ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["helpers.forked_programs", "altair", "helpers.snakemake_plugins", "markdown_it", "pandas",
     "polars", "psutil", "pyarrow", "pydantic", "rich.progress", "smart_open",
     "snakemake.report.html_reporter", "sympy", "torch", "torch._dynamo",
     "transformers.models.gpt2.modeling_gpt2", "vl_convert", "yaml", "yte",
     "modelbudget.api.command.app", "modelbudget.api.command.show", "hypothesis", "peft"]
)  # fmt: skip


def environment() -> dict[str, str]:
    """Environment variables without those of the test run."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}


def snakemake(
    folder: Path,
    arguments: tuple[str, ...],
    timeout_s: int,
    addresses: int = resource.RLIM_INFINITY,
):
    """Run `python -m snakemake` with these arguments in a folder, in at most so many addresses.

    Return what subprocess.run returns.
    """
    program = partial(_snakemake, addresses=addresses)
    return _forked(program, folder, arguments, environment(), timeout_s)


def command(folder: Path, arguments: tuple[str, ...], of_run: dict, timeout_s: int):
    """Run `python -m modelbudget` of this checkout in the same way, with environment variables."""
    return _forked(_command, folder, arguments, of_run, timeout_s)


@contextmanager
def snakemake_writing_to(file: str, folder: Path, arguments: tuple[str, ...], of_run: dict):
    """Give the process of `python -m snakemake`, whose group has its jobs; file: of a terminal."""
    with tempfile.TemporaryDirectory() as scratch:
        printed = [Path(file)] * 2
        program = partial(_snakemake, addresses=resource.RLIM_INFINITY)
        yield started(_run, program, folder, arguments, of_run, printed, Path(scratch))


def python(folder: Path, code: str, timeout_s: int = 60):
    """Run `python -c` in the same way: nothing of the project is loaded before."""
    return _forked(_code, folder, (code,), environment(), timeout_s)


def _forked(program, folder: Path, arguments: tuple[str, ...], of_run: dict, timeout_s: int):
    with tempfile.TemporaryDirectory() as scratch:
        printed = [Path(scratch) / name for name in ("stdout", "stderr")]
        run = started(_run, program, folder, arguments, of_run, printed, Path(scratch))
        run.join(timeout_s)
        if run.exitcode is None:
            run.kill()
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        texts = [path.read_text(encoding="utf-8") for path in printed]
    return subprocess.CompletedProcess(arguments, run.exitcode, *texts)


def started(function, *arguments):
    """Start a function in a process that the server forks."""
    run = SERVER.Process(target=function, args=arguments)
    # For the server, which has not the path of this process, and for transformers in it.
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with patch.dict(os.environ, PYTHONPATH=path, HF_HUB_OFFLINE="1"):
        run.start()
    return run


def _run(program, folder: Path, arguments, of_run: dict, printed: list[Path], scratch: Path):
    gc.freeze()  # what the server has left
    os.setpgid(0, 0)
    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(of_run)
    os.chdir(folder)
    of_tests = {str(ROOT), str(ROOT / "tests")}
    path = [entry for entry in sys.path if entry not in of_tests]
    sys.argv[1:] = arguments
    if program is not _command:
        for name in [name for name in sys.modules if name.partition(".")[0] == "modelbudget"]:
            del sys.modules[name]
    program(str(folder), path, scratch)


def _snakemake(folder: str, path: list[str], scratch: Path, addresses: int) -> None:
    from snakemake.cli import main

    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    convert_once()
    sys.path[:] = [folder, *path]
    main()


def _code(folder: str, path: list[str], scratch: Path) -> None:
    sys.path[:] = [folder, *path]
    exec(sys.argv[1], {"__name__": "__main__"})


def _command(folder: str, path: list[str], scratch: Path) -> None:
    sys.path[:] = [folder, *os.environ["PYTHONPATH"].split(os.pathsep), *path]
    atexit._clear()
    try:
        runpy.run_module("modelbudget", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
