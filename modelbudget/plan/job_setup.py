"""What every job of the pipeline does first."""

import atexit
import gc
import logging
import os
import sys
from functools import partial
from pathlib import Path

from modelbudget.common.errors import InputError
from modelbudget.common.progress import progress_file, write_progress_to
from modelbudget.plan import checksums
from modelbudget.plan.interrupt import end_in_order_when_interrupted

FAILED = "the job failed: "
"""Stands in the log before the error that ended the job."""


def start_log(snakemake) -> None:
    """Send all that this job writes to the rule's log file: records, warnings, standard output
    and standard error of this process and of those that it starts, and the error that ends it.
    The terminal belongs to the process that shows all jobs. When the job ends, write the checksums
    of its results.

    A job ends within minutes: looking for garbage among all that it imports and makes, again and
    again and once more at its end, takes up to two fifths of its time and frees next to nothing.
    """
    gc.freeze()
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    atexit.register(checksums.save, snakemake.output, snakemake.params.state)
    terminal = os.dup(2)
    log = Path(snakemake.log[0])
    handler = logging.FileHandler(log, mode="w", encoding="utf-8")
    logging.basicConfig(
        handlers=[handler],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.captureWarnings(True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(handler.stream.fileno(), stream.fileno())
    sys.excepthook = partial(_log_failure, log, terminal)
    write_progress_to(progress_file(log))
    end_in_order_when_interrupted()
    logging.info("rule %s, wildcards %s", snakemake.rule, dict(snakemake.wildcards))


def give_way() -> None:
    """For a job that nothing waits for, or only the report: where cores are few, the others go
    first. Said before torch and the like are imported, which takes seconds.
    """
    os.nice(5)


def _log_failure(log: Path, terminal: int, kind, error, trace) -> None:
    """One line for what the disk or the input refuses; for anything else also the traceback."""
    if kind is KeyboardInterrupt:
        logging.critical("stopped by Ctrl-C")
        return
    if isinstance(error, OSError | InputError) or "os error" in str(error):
        line = f"{FAILED}{error}. Nothing half-written was left; mend that and run again."
        logging.critical(line)
    else:
        line = f"{FAILED}{kind.__name__}: {error}"
        logging.critical(line, exc_info=(kind, error, trace))
    if reason_in(log) is None:  # the disk is full
        os.write(terminal, f"{line}\n".encode())


def reason_in(log: Path) -> str | None:
    """The error that ended the job, from its log; None where the log holds none."""
    try:
        _, found, rest = log.read_text(encoding="utf-8", errors="replace").rpartition(FAILED)
    except OSError:
        return None
    return FAILED + rest.partition("\nTraceback ")[0].strip() if found else None
