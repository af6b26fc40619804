"""Fresh processes, each forked from a server that has imported torch and has run nothing.

A new process would import torch, which takes longer than measuring a small model. (The fork server
of multiprocessing also imports the main module, which in a job is its script.)
"""

import atexit
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from modelbudget.common.paths import python_path
from modelbudget.common.workers import Failure, death, spread

log = logging.getLogger(__name__)
IMPORTED = ("numpy", "torch", "torch._dynamo")
"""Imports of the server. The first step of an optimizer would import `torch._dynamo`."""
LONGEST_S = 7 * 24 * 3600
"""No limit in practice: the caller has its own."""


def fresh(work: Callable[[Any], Any], item: Any) -> Any:
    """Return `work(item)` or a Failure, from a process whose memory is unused."""
    server = _server(os.getpid())
    try:
        server.connection.send((work, item))
        outcome = server.connection.recv()
    except (EOFError, OSError):
        outcome = Failure(death(server.process.wait()))
    if isinstance(outcome, Failure):
        server.errors.seek(0)
        log.warning("fresh process: %s", server.errors.read().decode(errors="replace"))
        server.errors.truncate(0)
    if server.process.poll() is not None:  # the next call starts another
        _server.cache_clear()
        server.end()
    return outcome


class _Server(NamedTuple):
    process: subprocess.Popen
    connection: Connection
    errors: BinaryIO
    """Standard error of the server and its forks."""

    def end(self) -> None:
        self.connection.close()
        self.process.wait()
        self.errors.close()


@cache
def _server(process: int) -> _Server:
    """Start the server of this process, whose id is `process`; a forked process starts its own."""
    ours, of_server = multiprocessing.Pipe()
    errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (open as long as the server is)
    with of_server:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(of_server.fileno())],
            pass_fds=[of_server.fileno()],
            env=os.environ | {"PYTHONPATH": python_path(Path(__file__).parents[3])},
            stderr=errors,
        )
    started = _Server(server, ours, errors)
    atexit.register(started.end)
    return started


def _serve(connection: Connection) -> None:
    """Serve requests until the other process ends, which closes the connection."""
    for name in IMPORTED:
        import_module(name)
    with suppress(EOFError):
        while True:
            work, item = connection.recv()
            ((_, outcome),) = spread(work, [item], 1, LONGEST_S)
            connection.send(outcome)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
