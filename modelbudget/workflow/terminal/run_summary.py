"""The jobs of a run, and its summary."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from modelbudget.common.paths import STARTED_IN
from modelbudget.workflow.interrupt import STOPPED
from modelbudget.workflow.job_setup import reason_in

FAILURES_SHOWN = 10
FILES_SHOWN = 5


@dataclass
class Job:
    """A job that was submitted, at `started` seconds since the epoch. On Slurm it may wait."""

    rule: str
    message: str
    log: Path | None
    started: float

    def reason(self) -> str | None:
        """Return why the job failed."""
        log = self._log_of_this_run()
        return reason_in(log) if log else None

    def was_stopped(self) -> bool:
        log = self._log_of_this_run()
        return bool(log) and STOPPED in log.read_text(encoding="utf-8", errors="replace")[-200:]

    def _log_of_this_run(self) -> Path | None:
        """Return the job's log; None if there is none, or one of another run: an older one."""
        try:
            is_of_this_run = self.log and self.log.stat().st_mtime >= self.started
        except OSError:
            return None
        return self.log if is_of_this_run else None


class WorkflowRun:
    """A run of Snakemake.

    Number of jobs in total, done and failed, the time when the last one ended, and the running
    jobs by id.
    """

    def __init__(self, workflow):
        self.workflow = workflow
        self.started = self.last = time.time()
        self.total = self.done = self.failed = 0
        self.jobs: dict[int, Job] = {}

    def results(self) -> list[str]:
        """Return lines about the results: the verdict, failures and the path of the page.

        If the page is not a target of the run, the paths of the targets.
        """
        for job in self.workflow.dag.jobs:
            if job.rule.name == "report":
                return [*verdict(Path(job.output.verdict)), path_from_start(job.output.html)]
        wanted = set(map(path_from_start, self.workflow.dag.targetfiles))
        outputs = {
            path_from_start(file) for job in self.workflow.dag.targetjobs for file in job.output
        }
        return _first(sorted(wanted or outputs), FILES_SHOWN, "")

    def work(self) -> str:
        """Return the number of jobs and the elapsed time."""
        return f"{self.done:,} of {self.total:,} jobs in {duration(time.time() - self.started)}"


def path_from_start(file: str | Path) -> str:
    """Return the path of a file from the folder where the run was started."""
    path = os.path.relpath(file, os.environ.get(STARTED_IN))
    return os.path.abspath(file) if path.startswith(os.pardir) else path


def verdict(path: Path) -> list[str]:
    """Return the verdict in one line, and a line for each failure."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        line, failures = content["line"], content.get("failures", [])
    except (OSError, ValueError, KeyError, TypeError):
        return [f"{path}: cannot be read; delete it and run again"]
    return [
        line,
        *(f"  {failure}" for failure in _first(failures, FAILURES_SHOWN, ", in the report")),
    ]


def _first(lines: list[str], n: int, where: str) -> list[str]:
    return lines[:n] + ([f"and {len(lines) - n:,} more{where}"] if len(lines) > n else [])


def duration(seconds: float) -> str:
    """Format seconds: 1.3 s, 32 s, 3 min 12 s, 1 h 4 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {seconds_left} s" if minutes else f"{seconds_left} s"
