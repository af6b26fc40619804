"""Interrupts (SIGINT, as by Ctrl-C, and SIGTERM).

A run ends within seconds, with all processes that it has started, and leaves no partial file.
"""

import logging
import signal
import sys
import threading
from contextlib import suppress

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = "stopped by a signal"
"""What the log of a job says that was interrupted."""
PATIENCE_S = 3
"""Seconds that jobs have to end by themselves; then they are killed."""


interrupted = threading.Event()
"""Whether Snakemake's process was interrupted."""


def end_jobs_when_interrupted() -> None:
    """Make Snakemake's process end its jobs when it is interrupted.

    By default it waits for running jobs (SIGTERM) or relies on a terminal to interrupt them
    (SIGINT). Call this after its scheduler is created, which sets a handler of its own.
    """
    for number in SIGNALS:
        signal.signal(number, _end_jobs)


def _end_jobs(*_) -> None:
    interrupted.set()
    jobs = psutil.Process().children(recursive=True)
    _each(jobs, psutil.Process.terminate)
    kill = threading.Timer(PATIENCE_S, _each, (jobs, psutil.Process.kill))
    kill.daemon = True
    kill.start()
    raise KeyboardInterrupt  # makes Snakemake start no more jobs and end


def _each(processes: list[psutil.Process], end) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            end(process)


def end_in_order_when_interrupted() -> None:
    """Make a job run its `with` and `finally` blocks when it is interrupted.

    They end its workers and remove temporary files. A second interrupt is ignored.
    """
    for number in SIGNALS:
        signal.signal(number, _end)


def _end(number: int, _) -> None:
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    logging.critical(STOPPED)
    sys.exit(128 + number)
