"""Python that is forked from a process that has imported packages.

In place of the interpreter stands a client that takes 10 ms: a server forks what it is to run, in
the client's folder, with its streams and environment variables. Ctrl-C interrupts what is forked
alone, whose exit code the client has. So run the jobs of Snakemake, which import the project from
their own folder as ever, and the processes that run the tests (`forked_workers.py`).
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
from collections.abc import Callable
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
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.makefile().read()))
"""


@contextmanager
def client_of_server(folder: Path, of_script: str):
    """Write the client into an empty folder, and give its path and the socket of its requests.

    It asks for no more than scripts whose path, the first argument, has `of_script` in it.
    """
    client, address = folder / "python", str(folder / "requests")
    client.write_text(CLIENT.format(python=sys.executable, scripts=of_script, address=address))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as requests:
        requests.bind(address)
        requests.listen()
        yield str(client), requests


@contextmanager
def forked_jobs(folder: Path, path: list[str]):
    """Fork each job that sys.executable is to run from this process as it is now.

    `folder` is an empty one, `path` the jobs' sys.path after the folder of the script.
    """
    python = sys.executable
    with client_of_server(folder, SCRIPTS) as (client, requests):
        server = FORK.Process(target=serve, args=(requests, _job, path))
        server.start()
    sys.executable = client
    try:
        yield
    finally:
        sys.executable = python
        server.terminate()
        server.join()


def serve(requests: socket.socket, run: Callable, *arguments) -> None:
    """Fork a process for each request, until the parent ends: it runs `run(client, *arguments)`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, forks = multiprocessing.parent_process().sentinel, {}
    while parent not in (ready := wait([parent, requests, *forks])):
        if requests in ready:
            client, _ = requests.accept()
            fork = FORK.Process(target=run, args=(client, *arguments))
            fork.start()
            forks[os.pidfd_open(fork.pid)] = fork, client
        for ended in forks.keys() & set(ready):
            fork, client = forks.pop(ended)
            os.close(ended)
            fork.join()
            client.sendall(str(fork.exitcode % 256).encode())
            client.close()


@contextmanager
def in_place_of(client: socket.socket):
    """Give the arguments of a client, in its folder, with its streams and environment variables."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, streams, *_ = socket.recv_fds(client, 3, 3)
    with client.makefile() as request:
        sys.argv[:], folder, environment = json.load(request)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    atexit._clear()
    try:
        yield sys.argv
    finally:
        atexit._run_exitfuncs()


def _job(client: socket.socket, path: list[str]) -> None:
    """Run a script as `python SCRIPT` does."""
    with in_place_of(client) as (script, *_):
        sys.path[:] = [str(Path(script).parent), *path]
        sys.excepthook = sys.__excepthook__
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception:
            sys.excepthook(*sys.exc_info())
            sys.exit(1)
