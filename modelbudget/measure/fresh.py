"""Work in fresh processes, each a fork of one that has imported torch and has run nothing.

A process that starts from nothing imports torch first, which takes longer than to measure a small
model. What a fork server forks has the same memory without that. (The fork server of
multiprocessing imports the main module too, which in a job is its script.)
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

from modelbudget.common.workers import Failure, death, spread

log = logging.getLogger(__name__)
IMPORTED = ("numpy", "torch", "torch._dynamo")
"""By the server: the first step of an optimizer would import `torch._dynamo`."""
LONGEST_S = 7 * 24 * 3600
"""No limit in practice: the caller has its own, and what it started ends with it."""


def fresh(work: Callable[[Any], Any], item: Any) -> Any:
    """`work(item)`, or a Failure, from a process whose memory nothing has used before."""
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
    """What it and its forks write to standard error."""

    def end(self) -> None:
        self.connection.close()
        self.process.wait()
        self.errors.close()


@cache
def _server(process: int) -> _Server:
    """The server of this process, whose id is `process`: after a fork, each has its own."""
    here, there = multiprocessing.Pipe()
    errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (open as long as the server is)
    with there:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(there.fileno())],
            pass_fds=[there.fileno()],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stderr=errors,
        )
    found = _Server(server, here, errors)
    atexit.register(found.end)
    return found


def _serve(connection: Connection) -> None:
    """Answer until the other process ends, which closes its end of the connection."""
    for name in IMPORTED:
        import_module(name)
    with suppress(EOFError):
        while True:
            work, item = connection.recv()
            ((_, outcome),) = spread(work, [item], 1, LONGEST_S)
            connection.send(outcome)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
