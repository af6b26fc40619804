"""Snakemake's records of how results were made, and its locks.

Snakemake compares a job's input and parameters with a record of its last run. The records are kept
in the folder of results, so that results keep them when they are copied or .snakemake is deleted.
"""

import json
import os
import shutil
import socket
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from modelbudget.common.files import write_json
from modelbudget.common.paths import RECORDS
from modelbudget.workflow import checksums

OF_SNAKEMAKE = Path(".snakemake")
OWNER = OF_SNAKEMAKE / "owner.json"
"""The process of the run that last found no lock of another one."""


def keep_beside_results(is_plan: bool) -> None:
    """Let Snakemake read and write its records in the folder of results. Call before it does.

    A dry run (`is_plan`) reads those that are there, and makes no folder.
    """
    if is_plan and not RECORDS.exists():
        return
    link = OF_SNAKEMAKE / "metadata"
    (OF_SNAKEMAKE / "incomplete").mkdir(parents=True, exist_ok=True)  # of its present format
    if link.is_symlink():
        RECORDS.mkdir(parents=True, exist_ok=True)
        return
    if link.is_dir():  # of a run before records were kept
        RECORDS.parent.mkdir(exist_ok=True)
        shutil.rmtree(RECORDS, ignore_errors=True)
        link.rename(RECORDS)
    RECORDS.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(RECORDS, link.parent))


def remove_damaged() -> None:
    """Remove records that are not JSON: Snakemake ends at them, and names results without one."""
    for record in RECORDS.rglob("*"):
        if record.is_file():
            try:
                json.loads(record.read_bytes())
            except ValueError:
                record.unlink()


def remove_changed_without_record(is_result: Callable[[str], bool]) -> None:
    """Remove results that have no record, by which Snakemake sees a change, and may have changed.

    Without a checksum nobody knows. `is_result`: whether a job makes a path.
    """
    recorded = {result for _, result in _records()}
    without = [path for path in RECORDS.parent.rglob("*") if path not in recorded]
    for path in filter(lambda path: is_result(str(path)), without):
        if checksums.changed_results([path]):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def restore_times() -> None:
    """Set the time of each unchanged result to that of its record: a copy has other times.

    Snakemake makes a result again if it is older than its input.
    """
    for record, result in _records():
        with suppress(OSError, ValueError, KeyError, TypeError):
            time_made = float(json.loads(record.read_text(encoding="utf-8"))["endtime"])
            is_other = result.stat().st_mtime != time_made
            if is_other and not checksums.changed_results([result]):
                os.utime(result, (time_made, time_made))


def _records() -> Iterator[tuple[Path, Path]]:
    """Yield each record with the path of its result, which is its name, in parts if it is long."""
    for record in RECORDS.rglob("*"):
        if record.is_file():
            name = "".join(part.removeprefix("@") for part in record.relative_to(RECORDS).parts)
            with suppress(ValueError):
                yield record, Path(urlsafe_b64decode(name).decode())


def remove_lock_of_ended_run() -> str | None:
    """Remove the lock of a run on this machine that no longer exists, and say so.

    Otherwise remember this process as the one whose lock comes next, if there is no lock.
    """
    locks = OF_SNAKEMAKE / "locks"
    line = None
    if locks.is_dir() and any(locks.iterdir()):
        owner = _owner()
        if owner is None or owner["host"] != socket.gethostname() or _is_running(owner):
            return None
        shutil.rmtree(locks)
        line = f"{locks}: of process {owner['process']}, which was killed; removed"
    ours = psutil.Process()
    about = {"process": ours.pid, "started": ours.create_time(), "host": socket.gethostname()}
    write_json(OWNER, about)
    return line


def line_of_locked() -> str:
    """Return why a run that needs results of another one cannot start, and what to do."""
    locked = f"Nothing was started: {Path.cwd()} is locked by"
    if (owner := _owner()) is None:
        return f"{locked} another run; if it has ended: snakemake --unlock"
    process = f"{locked} process {owner['process']} on {owner['host']}"
    if owner["host"] != socket.gethostname():
        return f"{process}; wait for it, or if it has ended: snakemake --unlock"
    return f"{process}, a run of the same results; wait for it, or end it, and run again"


def _owner() -> dict | None:
    try:
        owner = json.loads(OWNER.read_text(encoding="utf-8"))
        return {name: owner[name] for name in ("process", "started", "host")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_running(owner: dict) -> bool:
    try:
        return abs(psutil.Process(owner["process"]).create_time() - owner["started"]) < 1
    except psutil.NoSuchProcess:
        return False
