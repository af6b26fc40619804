"""How a run ends when it is interrupted (SIGINT, as by Ctrl-C, or SIGTERM): within seconds, with
all processes that it has started and without a half-written file.
"""

import signal
import sys
import threading
from contextlib import suppress

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 3
"""Seconds that the jobs have to end in order; what is left is killed."""


def end_jobs_when_interrupted() -> None:
    """For the process of Snakemake, which would otherwise wait for running jobs (SIGTERM) or rely
    on a terminal to interrupt them (SIGINT). To be called when its scheduler has been made, since
    that sets a handler of its own.
    """
    for number in SIGNALS:
        signal.signal(number, _end_jobs)


def _end_jobs(*_) -> None:
    jobs = psutil.Process().children(recursive=True)
    _each(jobs, psutil.Process.terminate)
    kill = threading.Timer(PATIENCE_S, _each, (jobs, psutil.Process.kill))
    kill.daemon = True
    kill.start()
    raise KeyboardInterrupt  # upon which Snakemake starts no more jobs and ends


def _each(processes: list[psutil.Process], end) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            end(process)


def end_in_order_when_interrupted() -> None:
    """For a job: its `with` and `finally` blocks end its workers and remove temporary files. A
    second interruption does not disturb that.
    """
    for number in SIGNALS:
        signal.signal(number, _end)


def _end(number: int, _) -> None:
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)
