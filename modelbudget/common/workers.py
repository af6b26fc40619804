"""Tasks in worker processes.

A task that raises, crashes its process, fills its memory or hangs fails alone. No worker outlives
the process that started it, however that process ends.
"""

import gc
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar, cast

log = logging.getLogger(__name__)
# Forked after torch is imported, a worker need not import it again.
_FORK = multiprocessing.get_context("fork")
_LONGEST_REASON = 300
Outcome = TypeVar("Outcome")


class Failure(NamedTuple):
    """The result of a task that failed."""

    reason: str


class Bound(NamedTuple):
    """Bytes that a worker may allocate, and the name of this limit in messages."""

    n_bytes: int
    name: str


def spread(
    work: Callable[[Any], Any],
    items: Sequence,
    n_workers: int,
    timeout_s: float,
    bound: Bound | None = None,
) -> Iterator[tuple[int, Any]]:
    """Start workers; yield the index of each item with `work(item)` or a Failure, as they complete.

    A worker has one item at a time, the first ones before anybody waits for a result. If an item
    crashes it or takes longer than `timeout_s` seconds, a new worker takes the next one.
    """
    numbers = iter(range(len(items)))
    busy: dict[Any, _Worker] = {}  # by connection

    def give(worker: _Worker | None) -> None:
        """Send the next item to this worker or to a new one."""
        number = next(numbers, None)
        if number is None:
            if worker:
                worker.end()
            return
        worker = worker or _Worker(lambda number: work(items[number]), bound)
        busy[worker.connection] = worker
        worker.begin(number, timeout_s)

    def outcomes() -> Iterator[tuple[int, Any]]:
        try:
            while busy:
                next_deadline = min(worker.deadline for worker in busy.values())
                answered = wait(busy, max(0, next_deadline - time.monotonic()))
                now = time.monotonic()
                late = [c for c, w in busy.items() if w.deadline <= now and c not in answered]
                for connection in (*answered, *late):
                    worker = busy[connection]
                    number = worker.item
                    outcome, alive = worker.outcome(f"no answer within {timeout_s} s")
                    del busy[connection]
                    give(worker if alive else None)
                    yield number, outcome
        finally:
            for worker in busy.values():
                worker.kill()

    for _ in range(n_workers):
        give(None)
    return outcomes()


def read_ahead(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Take outcomes in a thread, so that workers get their next items before anybody reads them.

    What ends them with an error is raised where they are read.
    """
    ended = object()
    taken: SimpleQueue[Any] = SimpleQueue()

    def take() -> None:
        try:
            for outcome in outcomes:
                taken.put(outcome)
        except Exception as error:
            taken.put(error)
        else:
            taken.put(ended)

    def read() -> Iterator[Outcome]:
        while (outcome := taken.get()) is not ended:
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    Thread(target=take, daemon=True).start()
    return read()


class Helper:
    """One worker that takes one item after another and is replaced if it dies."""

    def __init__(self, work: Callable[[Any], Any], timeout_s: float, bound: Bound):
        self._start = lambda: _Worker(work, bound)
        self._timeout_s = timeout_s
        self._worker: _Worker | None = None

    def __call__(self, item: Any) -> Any:
        """Return `work(item)` or a Failure."""
        worker = self._worker = self._worker or self._start()
        try:
            worker.begin(item, self._timeout_s)
            outcome, alive = worker.outcome(f"no answer within {self._timeout_s} s")
        except BaseException:  # as Ctrl-C: its late answer would be that of the next item
            worker.kill()
            self._worker = None
            raise
        if not alive:
            self._worker = None
        return outcome

    def end(self) -> None:
        """End the worker; the next item starts another."""
        if self._worker:
            self._worker.end()
            self._worker = None


class _Worker:
    """A process that receives one item at a time and returns its result."""

    def __init__(self, work: Callable[[Any], Any], bound: Bound | None):
        self._guard = guard(os.getpid())
        self.connection, end_of_worker = _FORK.Pipe()
        arguments = (end_of_worker, self.connection, work, bound)
        self.process = _FORK.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        self._id = cast(int, self.process.pid)  # None before the start
        # Only the worker holds its end of the pipe, so that its death is an end of file here.
        end_of_worker.close()
        # A process group of its own: processes that the worker starts are killed with it.
        os.setpgid(self._id, self._id)
        self._announce()

    def begin(self, item: Any, timeout_s: float) -> None:
        self.item, self.deadline = item, time.monotonic() + timeout_s
        self._send(item)

    def outcome(self, if_late: str) -> tuple[Any, bool]:
        """Return the result of the item, and whether the worker is still usable."""
        if not self.connection.poll(max(0, self.deadline - time.monotonic())):
            self.kill()
            return Failure(if_late), False
        try:
            outcome, alive = self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            return Failure(death(cast(int, self.process.exitcode))), False  # it has ended
        if not alive:
            self.kill()
        return outcome, alive

    def end(self) -> None:
        # Closing the pipe would have no effect: workers forked later hold this end too.
        self._send(None)
        self.process.join()
        self._announce()

    def kill(self) -> None:
        # A worker that died by itself keeps its exit code and may have left nothing to kill.
        with suppress(ProcessLookupError):
            os.killpg(self._id, signal.SIGKILL)
        self.process.join()
        self._announce()

    def _send(self, item: Any) -> None:
        with suppress(BrokenPipeError):  # it is dead: `outcome` will return that
            self.connection.send(item)

    def _announce(self) -> None:
        with suppress(BrokenPipeError):  # the guard was killed
            self._guard.send(self._id)


@cache
def guard(process: int) -> Connection:
    """Start the guard of this process, whose id is `process`, and return its pipe.

    A worker's id is sent when it starts and when it ends. When this process ends, even by SIGKILL,
    the guard reads the end of the pipe and kills the process group of every worker that has not
    ended. (A worker cannot wait for that while it computes, and prctl's PR_SET_PDEATHSIG is only on
    Linux and spares the processes that a worker started.)
    """
    reader, writer = _FORK.Pipe(duplex=False)
    os.register_at_fork(after_in_child=writer.close)
    # At exit this process joins the guard after a SIGTERM, which a guard that has just been forked
    # may lose; it always reads the end of the pipe.
    Finalize(None, writer.close, exitpriority=0)
    _FORK.Process(target=_guarding, args=(reader,), daemon=True).start()
    reader.close()
    return writer


def _guarding(connection: Connection) -> None:
    os.setpgid(0, 0)  # a signal to the group of the guarded process does not end the guard
    _default_signals()
    groups: set[int] = set()
    with suppress(EOFError):
        while True:
            groups ^= {connection.recv()}
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _default_signals() -> None:
    """Reset the handlers inherited from the parent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _serve(
    connection: Connection, of_parent: Connection, work: Callable[[Any], Any], bound: Bound | None
) -> None:
    of_parent.close()
    _default_signals()
    # Inherited objects live as long as the worker: collecting them takes longer than counting a
    # model. A model is not collected while it is built either.
    gc.freeze()
    gc.set_threshold(100_000)
    if bound:
        _keep_to(bound.n_bytes)
    with suppress(EOFError):  # the parent has ended
        while (item := connection.recv()) is not None:
            try:
                answer = work(item), True
            except MemoryError as error:
                # What is still allocated is unknown, so a new worker takes the next item.
                traceback.clear_frames(error.__traceback__)
                answer = Failure(_out_of_memory(error, bound)), False
            except Exception as error:
                log.warning("an item failed", exc_info=True)
                answer = Failure(in_one_line(error)), True
            connection.send(answer)


def _keep_to(n_bytes: int) -> None:
    """Let this process allocate at most `n_bytes` more.

    Uses RLIMIT_DATA (getrlimit(2)), which only Linux applies to all private memory.
    """
    if sys.platform == "linux":
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        n_pages = int(Path("/proc/self/statm").read_text().split()[5])  # of data, proc_pid_statm(5)
        most = n_pages * resource.getpagesize() + n_bytes
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _out_of_memory(error: MemoryError, bound: Bound | None) -> str:
    if bound is None:
        return in_one_line(error)
    return f"MemoryError: needs more than {bound.n_bytes:,} bytes, the limit for {bound.name}"


def in_one_line(error: Exception) -> str:
    """Format the class and the text of an error on one line of bounded length."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}"[:_LONGEST_REASON] if text else name


def for_readers(reason: str) -> str:
    """Return a reason without the name of a plain ValueError, whose text says what is wrong.

    Tables of measurements keep it: by their beginnings, reasons are failures or omissions.
    """
    return reason.removeprefix(f"{ValueError.__name__}: ")


def death(exitcode: int) -> str:
    """Describe an exit code; negative ones are signals."""
    if exitcode >= 0:
        return f"its process ended with exit status {exitcode}"
    if exitcode == -signal.SIGKILL:
        return f"killed by signal {-exitcode}, probably out of memory"
    return f"crashed with signal {-exitcode} ({signal.strsignal(-exitcode)})"
