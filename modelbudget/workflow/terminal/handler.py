"""Handlers that print Snakemake's log records."""

import errno
import logging
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import get_event
from snakemake.logging import logger as snakemake_logger
from snakemake_interface_logger_plugins.common import LogEvent

from modelbudget.workflow.interrupt import interrupted
from modelbudget.workflow.records import line_of_locked
from modelbudget.workflow.terminal.run_summary import Job, WorkflowRun, duration, path_from_start

OF_FAILED_JOBS = (
    "Exiting because a job execution failed",
    "WorkflowError:\nAt least one job did not complete successfully",
)
"""Beginnings of errors that Snakemake adds after it has reported a failed job."""
STOPS = (
    "Terminating processes on user request",
    "Will exit after finishing currently running jobs",
)
"""Beginnings of notes that Snakemake prints when a user stops a run."""
SECONDS_TO_STOP = 0.3
"""Seconds in which Snakemake's process gets the interrupt that ended a job without a reason."""
NO_REASON = "no reason is in its log: was it killed, or out of memory?"
REASON = 200
"""Characters of the reason for a job that a dry run prints; some reasons have thousands."""
FULL = os.strerror(errno.ENOSPC)
"""What an error says where a disk takes no more."""
LOCKED = "Error: Directory cannot be locked"
"""Beginning of Snakemake's advice where another run makes the same results."""
BEFORE_A_RUN = "Assuming unrestricted shared filesystem usage"
"""Beginning of a note that Snakemake prints before a run starts."""


def attach(workflow) -> "Terminal | Summary":
    """Replace Snakemake's output of this run.

    With --verbose, --quiet, --dry-run or --logger Snakemake's output is kept, and only the summary
    is added.
    """
    run, options = WorkflowRun(workflow), workflow.output_settings
    default = next((h for h in snakemake_logger.handlers if h.name == "DefaultStreamHandler"), None)
    if default is None or options.verbose or options.quiet or options.debug_dag or options.dryrun:
        handler = Summary(run, options.dryrun)
        if default and options.dryrun and not options.verbose:
            default.addFilter(_shortened)
    else:
        snakemake_logger.removeHandler(default)
        handler = Terminal(run, options.nocolor)
        handler.setFormatter(default.formatter)
    snakemake_logger.addHandler(handler)
    return handler


def _shortened(record: Any) -> bool:
    """Filter the output of a dry run: shorten reasons, drop the name of the machine.

    `record` is a log record to which Snakemake has added attributes that depend on the event.
    """
    if get_event(record) == LogEvent.JOB_INFO:
        record.reason = textwrap.shorten(record.reason, REASON, placeholder=" …")
    return get_event(record) != LogEvent.WORKFLOW_STARTED


class Summary(logging.Handler):
    """Prints the results of a run to standard output."""

    def __init__(self, run: WorkflowRun, dryrun: bool = False):
        super().__init__()
        self.run = run
        self.dryrun = dryrun

    def emit(self, record: logging.LogRecord) -> None:
        """Print the summary if nothing is to be done; Snakemake calls no hook then."""
        if record.msg == NOTHING_TO_BE_DONE_MSG and not self.dryrun:
            self.succeed()

    def succeed(self) -> None:
        print(*self.run.results(), sep="\n", flush=True)

    def fail(self, logs: list[str]) -> None:
        """Do nothing: Snakemake has printed the errors and the path of its log."""


class Terminal(Summary):
    """Prints a line for each finished job to standard error, and bars if that is a terminal."""

    def __init__(self, run: WorkflowRun, nocolor: bool):
        super().__init__(run)
        self.nocolor = nocolor
        self.in_run = self.stopped = False
        self.bars = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(record)
        except Exception:
            self.handleError(record)

    def succeed(self) -> None:
        self._stop_bars()
        super().succeed()
        if self.run.total:
            print(self.run.work(), flush=True)

    def fail(self, logs: list[str]) -> None:
        self._stop_bars()
        ended = f"FAILED: {self.run.failed:,} job(s)" if self.run.failed else "STOPPED"
        print(f"{ended}; done: {self.run.work()}. Run again to continue.", flush=True)
        print(f"Snakemake's log: {', '.join(map(path_from_start, logs))}", flush=True)

    def close(self) -> None:
        self._stop_bars()
        super().close()

    def _show(self, record: Any) -> None:
        """Show a log record; its attributes depend on the event."""
        run = self.run
        match get_event(record):
            case LogEvent.WORKFLOW_STARTED:
                self.in_run = True
            case LogEvent.RUN_INFO:
                run.total = record.stats["total"] - record.stats.get("all", 0)
                self._start_bars()
            case LogEvent.JOB_INFO if record.rule_name != "all":
                log = Path(record.log[0]) if record.log else None
                message = record.rule_msg or record.rule_name
                run.jobs[record.jobid] = Job(record.rule_name, message, log, record.created)
            case LogEvent.JOB_FINISHED if job := run.jobs.pop(record.job_id, None):
                self._finished(job, record.created)
            case LogEvent.JOB_ERROR if not record.indent:  # indented: of a group
                self._failed([record.jobid], record.log, record.created, record.rule_msg)
            case LogEvent.GROUP_ERROR:
                # Names all jobs of the group; those that failed have a reason in their log.
                jobs = [info["jobid"] for info in record.job_error_info]
                waiting = [
                    jobid for jobid in jobs if jobid in run.jobs and run.jobs[jobid].reason()
                ]
                self._failed(waiting or jobs, record.aux_logs, record.created)
            case LogEvent.ERROR | None:
                self._message(record)

    def _finished(self, job: Job, now: float) -> None:
        self.run.done += 1
        self.run.last = now
        done = f"{self.run.done:>{len(str(self.run.total))}}/{self.run.total}"
        self._print(f"{done} {duration(now - job.started):>10}  {job.message}")

    def _failed(
        self, jobids: list[int], logs: list[str], now: float, from_executor: str | None = None
    ) -> None:
        jobs = [job for jobid in jobids if (job := self.run.jobs.pop(jobid, None))]
        # A terminal interrupts jobs too, which may end before Snakemake's process is interrupted.
        self.stopped = self.stopped or any(job.was_stopped() for job in jobs)
        has_reason = any(job.reason() for job in jobs)
        self.stopped = self.stopped or interrupted.wait(0 if has_reason else SECONDS_TO_STOP)
        for job in [] if self.stopped else jobs:
            self.run.failed += 1
            existing = [log for log in dict.fromkeys([str(job.log), *logs]) if os.path.exists(log)]
            self._print(
                f"FAILED after {duration(now - job.started)}: rule {job.rule}, {job.message}\n"
                f"{job.reason() or from_executor or NO_REASON}\n"
                f"log: {', '.join(map(path_from_start, existing)) or 'none'}",
                "red",
            )

    def _message(self, record: logging.LogRecord) -> None:
        """Print warnings, errors, and notes outside of a run, such as those of --unlock."""
        text = self.format(record)
        if LOCKED in text:
            text = line_of_locked()
        elif FULL in text:
            kept = "What was computed is kept; free some and run again."
            text = f"{Path.cwd()}: {FULL} for results and records. {kept}"
        if record.msg == NOTHING_TO_BE_DONE_MSG:
            self._print(text)
            self.succeed()
        elif record.levelno >= logging.WARNING:
            if "CalledProcessError in file" not in text and not text.startswith(OF_FAILED_JOBS):
                self._print(text, "red" if record.levelno >= logging.ERROR else "yellow")
        elif text.startswith(STOPS):
            self.stopped = True
            self._print(text)
        elif not self.in_run and not text.startswith(BEFORE_A_RUN):
            self._print(text)

    def _print(self, text: str, color: str = "") -> None:
        if self.bars:
            self.bars.print(text, color)
        else:
            print(text, file=sys.stderr, flush=True)

    def _start_bars(self) -> None:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from modelbudget.workflow.terminal.progress_bars import Bars  # imports rich

            self.bars = Bars(self.run, self.nocolor)

    def _stop_bars(self) -> None:
        if self.bars:
            self.bars.stop()
            self.bars = None
