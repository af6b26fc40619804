"""What surrounds a run goes wrong: a message or no effect, never a wrong number."""

import os
import resource
import shutil
import signal
import subprocess
import time

import polars as pl
import pytest
from helpers.forked_programs import environment, snakemake_writing_to
from helpers.project import SMALL, Project, start

from modelbudget.common.errors import InputError
from modelbudget.workflow import preflight

TARGET = "results/small/comparison.parquet"


def output_of(run: subprocess.Popen) -> str:
    return run.communicate(timeout=300)[0]


def finishes(project: Project, *arguments: str) -> bool:
    run = project.snakemake(*arguments)
    print(run.stdout, run.stderr)
    return run.returncode == 0


def agrees(project: Project) -> bool:
    table = pl.read_parquet(project.folder / TARGET)
    return table["agrees"].all() and table["point"].n_unique() == 4


@pytest.fixture
def project(make_project):
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    return project


def test_an_odd_path_a_c_locale_and_no_home(project, tmp_path):
    odd = tmp_path / "mein Ordner – é%s"
    shutil.copytree(project.folder, odd)
    project.folder = odd
    bare = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": "/dev/null"}
    run = start(project, TARGET, env=bare)
    output = output_of(run)
    assert run.returncode == 0, output
    assert agrees(project)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_in_a_line_and_nothing_is_lost(project):
    """A limit on the size of files stands for a full disk: the same calls fail, here that which
    writes the largest table.
    """
    wide = SMALL.replace("[8, 16]", "{from: 1, to: 150, steps: 150}")
    project.write_sweep("small.yaml", wide)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, resource.RLIM_INFINITY))

    output = output_of(start(project, TARGET, preexec_fn=limit))
    (error,) = {line for line in output.splitlines() if line.startswith("the job failed: ")}
    assert "File too large" in error
    assert "No partial file was left" in error
    assert "Traceback" not in output
    results = project.folder / "results"
    assert not list(results.rglob("*.part"))
    assert not (project.folder / TARGET).exists()
    (measured,) = (results / "measurements").glob("*.parquet")
    before = measured.stat()
    assert finishes(project, TARGET)
    assert measured.stat().st_mtime_ns == before.st_mtime_ns
    assert [*measured.parent.glob("*.parquet")] == [measured]
    assert pl.read_parquet(project.folder / TARGET)["agrees"].all()


def test_results_that_cannot_be_written_are_told_before_any_work(tmp_path, monkeypatch):
    preflight.check_results(tmp_path)
    preflight.check_results(tmp_path / "made by the first job")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(InputError, match="not writable"):
        preflight.check_results(tmp_path)


@pytest.mark.slow
def test_the_second_of_two_runs_at_once_is_refused(project):
    first = start(project, TARGET)
    locks = project.folder / ".snakemake" / "locks"
    while not (locks.exists() and any(locks.iterdir())):
        time.sleep(0.05)
        assert first.poll() is None
    second = start(project, TARGET)
    said = output_of(second)
    assert f"is locked by process {first.pid} on " in said
    assert "cannot be locked" not in said
    assert second.returncode != 0
    output_of(first)
    assert first.returncode == 0
    assert agrees(project)


def test_killed_and_taken_up_again(project):
    """`benchmarks/kills.py` does this at twenty moments and compares every byte."""
    arguments = ("--cores", "2", TARGET)
    with snakemake_writing_to(os.devnull, project.folder, arguments, environment()) as run:
        while not (project.folder / "results/small/points.parquet").exists():
            time.sleep(0.05)
            assert run.is_alive()
        os.killpg(run.pid, signal.SIGKILL)
        run.join()
    assert not (project.folder / TARGET).exists()
    assert finishes(project, "--unlock")
    assert finishes(project, TARGET)
    assert agrees(project)


@pytest.mark.slow
def test_interrupted_it_ends_within_seconds(project):
    run = start(project, TARGET, start_new_session=True)
    while not (project.folder / "results/logs/measure-1-of-1.log").exists():
        time.sleep(0.05)
        assert run.poll() is None
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=30)
    assert not list((project.folder / "results").rglob("*.part"))
    assert finishes(project, TARGET)
    assert agrees(project)


@pytest.mark.slow
def test_a_clock_that_jumps(project):
    """A source from the future is named; results from the past are made again or kept."""
    source = project.folder / "configs/sweeps/small.yaml"
    in_future, long_ago = time.time() + 10**8, 10**8
    os.utime(source, (in_future, in_future))
    output = output_of(start(project, TARGET))
    assert "than input configs/sweeps/small.yaml" in output
    assert "Traceback" not in output
    os.utime(source)
    assert finishes(project, TARGET)
    for table in (project.folder / "results").rglob("*.parquet"):
        os.utime(table, (long_ago, long_ago))
    assert finishes(project, TARGET)
    assert agrees(project)
