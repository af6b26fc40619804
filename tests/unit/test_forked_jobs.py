"""Runs of Snakemake fork their jobs; here is what happens where that is impossible."""

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

from modelbudget.workflow.forked_jobs import (
    SCRIPTS,
    client_of_server,
    fork_jobs,
    run_job,
    serve,
)


def script_of_job(folder: Path, text: str) -> Path:
    """Write a script into a folder as Snakemake has them."""
    script = folder / SCRIPTS.strip("/") / "job.py"
    script.parent.mkdir(parents=True)
    script.write_text(text)
    return script


def test_a_client_without_its_server_starts_the_interpreter(tmp_path):
    script = script_of_job(tmp_path / "scripts", "import sys; sys.exit(7)")
    with client_of_server(tmp_path, SCRIPTS) as (client, _):
        pass
    assert subprocess.run([client, str(script)], check=False).returncode == 7


def test_a_client_whose_server_is_killed_fails_without_a_traceback(tmp_path):
    script = script_of_job(tmp_path / "scripts", "")
    with client_of_server(tmp_path, SCRIPTS) as (client, requests):
        job = subprocess.Popen([client, str(script)], stderr=subprocess.PIPE)
        server, _ = requests.accept()
        with server, server.makefile() as request:
            request.read()
    assert job.communicate() == (None, b"")
    assert job.returncode == 1


def test_no_client_stands_where_snakemake_could_not_start_it(tmp_path, monkeypatch):
    """Snakemake does not quote the path of the interpreter."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary files"))
    (tmp_path / "temporary files").mkdir()
    python = sys.executable
    fork_jobs()
    assert sys.executable == python


def test_no_client_stands_where_linux_cannot_wait_for_a_process(tmp_path, monkeypatch):
    def pidfd_open(process: int) -> int:
        raise OSError(errno.ENOSYS, "not in Linux before 5.3")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    python = sys.executable
    fork_jobs()
    assert sys.executable == python


def test_a_job_ends_while_one_that_was_forked_later_runs(tmp_path):
    waiting = "import os; os.write(1, b'begun\\n'); os.read(0, 1)"
    script = script_of_job(tmp_path / "scripts", waiting)
    with client_of_server(tmp_path, SCRIPTS) as (client, requests):
        server = multiprocessing.get_context("fork").Process(target=serve, args=(requests, run_job))
        server.start()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    jobs = [subprocess.Popen([client, str(script)], **pipes) for _ in range(2)]
    try:
        assert [job.stdout.readline() for job in jobs] == [b"begun\n"] * 2
        jobs[0].stdin.close()
        assert jobs[0].wait(10) == 0
        assert jobs[1].poll() is None
    finally:
        jobs[1].communicate()
        jobs[0].stdout.close()
        server.terminate()
        server.join()


def test_a_run_that_is_killed_leaves_no_folder(tmp_path):
    code = (
        "import sys, time; from modelbudget.workflow import forked_jobs; forked_jobs.IMPORTED = ();"
        "forked_jobs.fork_jobs(); print(sys.executable, flush=True); time.sleep(60)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        client = Path(run.stdout.readline().strip())
        assert client.parent.parent == tmp_path
        run.kill()
    deadline = time.monotonic() + 30
    while client.parent.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [*tmp_path.iterdir()]
