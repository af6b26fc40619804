"""Jobs that are forked from a process that has imported what they need.

Snakemake starts the interpreter for each job, in whose place stands a client that takes 10 ms: a
server forks the job, in the client's folder, with its streams and environment variables, while it
imports packages, which take most jobs longer than all else. Ctrl-C interrupts what is forked alone,
whose exit code the client has. Where there is no server, the client starts the interpreter.
"""

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, cast

_FORK = multiprocessing.get_context("fork")
IMPORTED = ("polars", "torch", "torch._dynamo", "altair")
"""Packages that jobs import, in the order in which they need them."""
SCRIPTS = "/.snakemake/scripts/"
CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
try:
    if {scripts!r} not in sys.argv[1]:
        raise OSError
    server.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
signal.signal(signal.SIGINT, signal.SIG_IGN)
streams = array.array("i", [0, 1, 2])
server.sendmsg([b"job"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.makefile().read() or 1))  # empty: the server was killed
"""


def fork_jobs() -> None:
    """Fork the jobs of this process, which have what it has imported of the library.

    Call this before threads are started. Does nothing where such calls are missing, as on macOS
    and Linux before 5.3, where no temporary file may be executed, or where its path needs quotes,
    which Snakemake leaves out.
    """
    if sys.platform != "linux":
        return
    folder = Path(tempfile.mkdtemp(prefix="modelbudget-"))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)
    with suppress(OSError), client_of_server(folder, SCRIPTS) as (client, requests):
        os.close(os.pidfd_open(os.getpid()))
        if os.access(client, os.X_OK) and shlex.quote(client) == client:
            server = _FORK.Process(target=_serve_jobs, args=(requests, folder))
            server.start()
            Finalize(None, server.terminate, exitpriority=0)  # it is joined afterwards
            sys.executable = client


@contextmanager
def client_of_server(folder: Path, of_script: str) -> Iterator[tuple[str, socket.socket]]:
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


def _serve_jobs(requests: socket.socket, folder: Path) -> None:
    """Run jobs until the parent ends, and remove the folder if it was killed."""
    serve(requests, run_job, IMPORTED)
    shutil.rmtree(folder, ignore_errors=True)


def serve(
    requests: socket.socket, run: Callable[[socket.socket], None], modules: Iterable[str] = ()
) -> None:
    """Run `run(client)` in a fork of this process for each request, until the parent ends.

    Import the modules, one after another, while there is nothing else to do. A job meets the error
    of one that cannot be imported.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(1_000_000)  # imports, and what is forked, leave little to collect
    unimported = [*modules]
    parent, forks = cast(Any, multiprocessing.parent_process()).sentinel, {}
    while parent not in (ready := wait([parent, requests, *forks], 0 if unimported else None)):
        if not ready:
            with suppress(Exception):
                import_module(unimported.pop(0))
        if requests in ready:
            client, _ = requests.accept()
            fork = _FORK.Process(target=run, args=(client,))
            fork.start()
            forks[os.pidfd_open(cast(int, fork.pid))] = fork, client
        for ended in forks.keys() & {*ready}:
            fork, client = forks.pop(ended)
            os.close(ended)
            fork.join()
            with suppress(OSError):  # the client was killed
                client.sendall(str(fork.exitcode % 256).encode())
                client.shutdown(socket.SHUT_RDWR)  # jobs that were forked later have it open
            client.close()


@contextmanager
def in_place_of(client: socket.socket) -> Iterator[list[str]]:
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


def run_job(client: socket.socket) -> None:
    """Run a script as `python SCRIPT` does."""
    with in_place_of(client) as (script, *_):
        sys.path.insert(0, str(Path(script).parent))
        sys.excepthook = sys.__excepthook__
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception:
            sys.excepthook(*cast(Any, sys.exc_info()))
            sys.exit(1)
