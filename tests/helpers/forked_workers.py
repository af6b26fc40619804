"""A pytest plugin: the processes that run tests are forked from the server of `forked_programs`.

What it has imported is imported once for all of them, and for the programs that they start.
"""

import gc
import os
import socket
import sys
import tempfile
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import arbitrary_address
from pathlib import Path
from types import ModuleType

import pytest

from helpers.forked_programs import started
from modelbudget.workflow.forked_jobs import client_of_server, in_place_of, serve


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config, specs):
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    with client_of_server(Path(folder.name), "") as (client, requests):
        server = started(serve, requests, _worker)
    config.add_cleanup(server.join)
    config.add_cleanup(server.terminate)
    for spec in specs:
        spec.python = client


def _worker(client: socket.socket) -> None:
    """Run what xdist sends to a worker: `python -u -c CODE`."""
    gc.freeze()
    with in_place_of(client) as (*_, code):
        _fork_server()
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as long as the process)
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(code, main.__dict__)


def _fork_server() -> None:
    """Let the server of this worker's programs be a fork of it as it is now.

    So they are among the processes that it has started, whose CPU seconds are counted.
    """
    server, address = forkserver._forkserver, arbitrary_address("AF_UNIX")
    with socket.socket(socket.AF_UNIX) as requests:
        requests.bind(address)
        requests.listen()
        until_closed, open_end = os.pipe()
        server._forkserver_pid = os.fork()
        if server._forkserver_pid == 0:
            os.close(open_end)
            for stream in (0, 1):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            with suppress(SystemExit):
                forkserver.main(requests.fileno(), until_closed, [])
            os._exit(0)
        os.close(until_closed)
    server._forkserver_address, server._forkserver_alive_fd = address, open_end
