"""Progress of a job, in a small file that the terminal reads while the job runs.

The jobs of a run are processes of their own, several at once and perhaps on other machines, so
none of them draws: each writes how far it is, and one process shows them all.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
SECONDS_BETWEEN_WRITES = 0.5
_file: Path | None = None


class Progress(NamedTuple):
    """Items done, items in total, and seconds since the first of them was begun."""

    done: int
    total: int
    seconds: float


def progress_file(log: str | Path) -> Path:
    """Where a job with this log writes its progress."""
    return Path(log).with_suffix(".progress")


def write_progress_to(path: Path) -> None:
    """Let `progress` write to this file; without it, as in a notebook, it writes nothing."""
    global _file
    _file = path
    path.unlink(missing_ok=True)  # of a job that was killed


def progress(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the items and write how many were yielded, at most twice a second."""
    started = written = time.monotonic()
    _write(Progress(0, total, 0))
    try:
        for done, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - written >= SECONDS_BETWEEN_WRITES:
                written = now
                _write(Progress(done, total, now - started))
    finally:
        if _file:
            _file.unlink(missing_ok=True)


def _write(state: Progress) -> None:
    if _file:
        with suppress(OSError):  # a disk that is full stops a job elsewhere, with a message
            _file.write_text(json.dumps(state))


def read_progress(path: Path) -> Progress | None:
    """None where nothing is known: no file, or one that is being written at this moment."""
    try:
        done, total, seconds = json.loads(path.read_text())
        return Progress(int(done), int(total), float(seconds))
    except (OSError, ValueError, TypeError):
        return None
