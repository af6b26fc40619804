"""Python for the scripts of Snakemake's jobs, forked from a process that has imported packages.

In place of the interpreter that Snakemake starts for a job stands a client that takes 10 ms: a
server forks the job, which imports the project from its own folder as ever. Ctrl-C interrupts the
job alone, whose exit code the client has.
"""

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

# First of what the server imports: the other imports and what is forked leave little to collect.
gc.set_threshold(1_000_000)

FORK = multiprocessing.get_context("fork")
SCRIPTS = "/.snakemake/scripts/"
CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys

if {scripts!r} not in sys.argv[1]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
signal.signal(signal.SIGINT, signal.SIG_IGN)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
streams = array.array("i", [0, 1, 2])
server.sendmsg([b"job"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(json.dumps([sys.argv[1], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.makefile().read()))
"""


@contextmanager
def forked_jobs(folder: Path, path: list[str]):
    """Fork each job that sys.executable is to run from this process as it is now.

    `folder` is an empty one, `path` the jobs' sys.path after the folder of the script.
    """
    python, client, address = sys.executable, folder / "python", str(folder / "jobs")
    client.write_text(CLIENT.format(python=python, scripts=SCRIPTS, address=address))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as requests:
        requests.bind(address)
        requests.listen()
        server = FORK.Process(target=_serve, args=(requests, os.getpid(), path))
        server.start()
    sys.executable = str(client)
    try:
        yield
    finally:
        sys.executable = python
        server.terminate()
        server.join()


def _serve(requests: socket.socket, parent: int, path: list[str]) -> None:
    """Fork jobs until the process that needs them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs = {}
    while os.getppid() == parent:
        ready = wait([requests, *jobs], timeout=1)
        if requests in ready:
            client, _ = requests.accept()
            job = FORK.Process(target=_run, args=(client, path))
            job.start()
            jobs[os.pidfd_open(job.pid)] = job, client
        for ended in jobs.keys() & set(ready):
            job, client = jobs.pop(ended)
            os.close(ended)
            job.join()
            client.sendall(str(job.exitcode % 256).encode())
            client.close()


def _run(client: socket.socket, path: list[str]) -> None:
    """Run a script as `python SCRIPT` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, streams, *_ = socket.recv_fds(client, 3, 3)
    with client.makefile() as request:
        script, folder, environment = json.load(request)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = [script]
    sys.path[:] = [str(Path(script).parent), *path]
    sys.excepthook = sys.__excepthook__
    atexit._clear()
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
