"""Work spread over processes, each piece at its own risk.

A piece that raises an error, kills its process or hangs costs itself and nothing else.
"""

import gc
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

log = logging.getLogger(__name__)
# Fork after torch is imported: a worker is ready at once instead of importing it again.
_FORK = multiprocessing.get_context("fork")
_LONGEST_REASON = 300


class Failure(NamedTuple):
    """What comes back for a piece that was not done."""

    reason: str


def spread(
    work: Callable[[Any], Any], items: Sequence, n_workers: int, timeout_s: float
) -> Iterator[tuple[int, Any]]:
    """The number of each item with `work(item)`, or with a Failure, as they come.

    A worker has one item at a time, so the item that kills it or keeps it longer than `timeout_s`
    seconds is known; a fresh worker takes the next one.
    """
    numbers = iter(range(len(items)))
    busy: dict[Connection, _Worker] = {}

    def give(worker: _Worker | None) -> None:
        """The next item, to this worker or to a new one."""
        number = next(numbers, None)
        if number is None:
            if worker:
                worker.end()
            return
        worker = worker or _Worker(work, items)
        busy[worker.connection] = worker
        worker.begin(number, timeout_s)

    try:
        for _ in range(n_workers):
            give(None)
        while busy:
            next_deadline = min(worker.deadline for worker in busy.values())
            answered = wait(busy, max(0, next_deadline - time.monotonic()))
            now = time.monotonic()
            late = [c for c, w in busy.items() if w.deadline <= now and c not in answered]
            for connection in (*answered, *late):
                worker = busy.pop(connection)
                number = worker.number
                outcome, alive = worker.outcome(f"no answer within {timeout_s} s")
                give(worker if alive else None)
                yield number, outcome
    finally:
        for worker in busy.values():
            worker.kill()


class _Worker:
    """A process that is told numbers of items, and answers each with what came of it."""

    def __init__(self, work: Callable, items: Sequence):
        self.connection, there = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(there, work, items), daemon=True)
        self.process.start()
        # Only the worker holds its end, so that this one reads an end when the worker dies.
        there.close()
        # A group of its own: what the worker starts dies with it.
        os.setpgid(self.process.pid, self.process.pid)

    def begin(self, number: int, timeout_s: float) -> None:
        self.number, self.deadline = number, time.monotonic() + timeout_s
        self._tell(number)

    def outcome(self, if_late: str) -> tuple[Any, bool]:
        """What came of the item, and whether the worker lives on."""
        if not self.connection.poll():
            self.kill()
            return Failure(if_late), False
        try:
            return self.connection.recv(), True
        except (EOFError, OSError):
            self.kill()
            return Failure(death(self.process.exitcode)), False

    def end(self) -> None:
        # Said, since a worker forked later holds this end, too: closing it tells nothing.
        self._tell(None)
        self.process.join()

    def kill(self) -> None:
        # What died by itself keeps its own exit code, and may have left nothing to kill.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()

    def _tell(self, number: int | None) -> None:
        with suppress(BrokenPipeError):  # it is dead, which reading its answer tells
            self.connection.send(number)


def _serve(connection: Connection, work: Callable, items: Sequence) -> None:
    # All that was there before lives as long as the worker: looking through it again and again for
    # garbage takes longer than counting a model. Nor is a model looked through while it is built.
    gc.freeze()
    gc.set_threshold(100_000)
    while (number := connection.recv()) is not None:
        try:
            outcome = work(items[number])
        except Exception as error:
            log.warning("item %d failed", number, exc_info=True)
            outcome = Failure(_in_one_line(error))
        connection.send(outcome)


def _in_one_line(error: Exception) -> str:
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}"[:_LONGEST_REASON] if text else name


def death(exitcode: int) -> str:
    """An exit code in words; negative ones are signals."""
    if exitcode >= 0:
        return f"its process ended with exit status {exitcode}"
    if exitcode == -signal.SIGKILL:
        return f"killed by signal {-exitcode}, probably out of memory"
    return f"crashed with signal {-exitcode} ({signal.strsignal(-exitcode)})"
