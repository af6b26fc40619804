"""Set-up of every job of the pipeline: log, checksums, garbage collection."""

import atexit
import gc
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path

from modelbudget.common.errors import InputError
from modelbudget.common.files import FILES_READ
from modelbudget.common.paths import CONFIGS, SWEEPS, failed_at
from modelbudget.common.progress import progress_file, write_progress_to
from modelbudget.workflow import checksums
from modelbudget.workflow.interrupt import end_in_order_when_interrupted

FAILED = "the job failed: "
"""Prefix in the log of the error that ended the job."""


def start_log(snakemake) -> None:
    """Redirect the output of this job to the log file of its rule. Call it before other imports.

    Covers log records, warnings, standard output and standard error of this process and of its
    children, and the error that ends it; the terminal is left to the process of the run. When the
    job ends, the checksums of its results are written.

    Garbage collection is made rare: in a job of minutes it takes up to two fifths of the time,
    while packages are imported a fifth, and frees almost nothing.
    """
    gc.freeze()
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    atexit.register(_save_checksums, snakemake)
    terminal = os.dup(2)
    log = Path(snakemake.log[0])
    output = log.open("w", encoding="utf-8")
    logging.basicConfig(
        stream=output,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.captureWarnings(True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(output.fileno(), stream.fileno())
    sys.excepthook = partial(_log_failure, log, terminal)
    write_progress_to(progress_file(log))
    end_in_order_when_interrupted()
    logging.info("rule %s, wildcards %s", snakemake.rule, dict(snakemake.wildcards))


def _save_checksums(snakemake) -> None:
    """Write what the results of this job were made of: files of `configs` among it.

    Paths are relative to the working directory, so that a copy of the folder has the same.
    """
    folders = tuple(f"{folder.resolve()}{os.sep}" for folder in (CONFIGS, SWEEPS.parent))
    read = {path for path in map(os.path.abspath, FILES_READ) if path.startswith(folders)}
    inputs = {os.path.abspath(path) for path in snakemake.input}
    files = {Path(os.path.relpath(path)) for path in read - inputs}
    checksums.save(snakemake.output, dict(snakemake.params.items()), files)


def note_failure(sweep: str) -> None:
    """Note that a model of a sweep could not be measured or counted: the next run tries again."""
    failed_at(sweep).write_text(str(time.time_ns()), encoding="utf-8")


def _log_failure(log: Path, terminal: int, error_class, error, trace) -> None:
    """Log an error: one line for bad input or a failing disk, otherwise also the traceback."""
    if error_class is KeyboardInterrupt:
        logging.critical("stopped by Ctrl-C")
        return
    if isinstance(error, OSError | InputError) or "os error" in str(error):
        line = f"{FAILED}{error}. No partial file was left; fix that and run again."
        logging.critical(line)
    else:
        line = f"{FAILED}{error_class.__name__}: {error}"
        logging.critical(line, exc_info=(error_class, error, trace))
    if reason_in(log) is None:  # the disk is full
        os.write(terminal, f"{line}\n".encode())


def reason_in(log: Path) -> str | None:
    """Return the error that ended a job, from its log; None if there is none."""
    try:
        _, mark, rest = log.read_text(encoding="utf-8", errors="replace").rpartition(FAILED)
    except OSError:
        return None
    return FAILED + rest.partition("\nTraceback ")[0].strip() if mark else None
