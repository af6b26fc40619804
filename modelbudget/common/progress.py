"""Progress of a job, in a small file that the terminal reads while the job runs.

Jobs are separate processes, perhaps on other machines. Each writes its progress to a file, and the
process of the run draws all bars.
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
    """Items done, items in total, and seconds since the first item was started."""

    done: int
    total: int
    seconds: float


def progress_file(log: str | Path) -> Path:
    return Path(log).with_suffix(".progress")


def write_progress_to(path: Path) -> None:
    """Let `progress` write to this file. Without this call, it writes nothing."""
    global _file
    _file = path
    path.unlink(missing_ok=True)  # left by a killed job


def progress(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the items and write how many are done, at most twice a second."""
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
        with suppress(OSError):  # a full disk stops the job elsewhere, with a message
            _file.write_text(json.dumps(state))


def read_progress(path: Path) -> Progress | None:
    """Read a job's progress; None if there is no file, or one that is being written."""
    try:
        done, total, seconds = json.loads(path.read_text())
        return Progress(int(done), int(total), float(seconds))
    except (OSError, ValueError, TypeError):
        return None
