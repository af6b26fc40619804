"""Progress bars at the bottom of a terminal: one for the run, and one for each longer job."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from modelbudget.common.progress import progress_file, read_progress
from modelbudget.workflow.terminal.run_summary import WorkflowRun, duration

SECONDS_BEFORE_A_BAR = 1
PER_SECOND = 2


class Bars:
    """Progress bars that are drawn while jobs run."""

    def __init__(self, run: WorkflowRun, nocolor: bool):
        self.run = run
        self.started = time.time()
        self.console = Console(stderr=True, no_color=nocolor or None, highlight=False)
        self.live = Live(
            console=self.console,
            get_renderable=self._table,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self.live.start()
        self.console.show_cursor()  # a killed run would leave it hidden

    def print(self, text: str, color: str) -> None:
        """Print lines above the bars."""
        self.console.print(Text(text, style=color), soft_wrap=True)

    def stop(self) -> None:
        self.live.stop()

    def _table(self) -> Table:
        """Build the table of bars. A thread of rich calls this while jobs start and end."""
        now, jobs = time.time(), list(self.run.jobs.values())
        inside = [read_progress(progress_file(job.log)) if job.log else None for job in jobs]
        table = Table.grid(
            Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            Column(width=16),
            Column(justify="right", no_wrap=True),
            Column(justify="right", no_wrap=True, min_width=17),
            padding=(0, 0, 0, 2),
            pad_edge=False,
            expand=True,
        )
        longest = parts = 0
        for job, progress in zip(jobs, inside, strict=True):
            lasted = now - job.started
            if progress:
                left = _left(*progress)
                table.add_row(job.message, *_bar(progress.done, progress.total, left))
                longest, parts = max(longest, left), parts + progress.done / progress.total
            elif lasted >= SECONDS_BEFORE_A_BAR:
                table.add_row(job.message, "", "", duration(lasted))
        run = self.run
        left = _left(run.done, run.total, run.last - self.started) - (now - run.last)
        table.add_row("all jobs", *_bar(run.done, run.total, max(left, longest), parts))
        return table


def _left(done: int, total: int, seconds: float) -> float:
    """Estimate the remaining seconds from the mean time of an item; 0 if none is done."""
    return seconds / done * (total - done) if done else 0


def _bar(done: int, total: int, left: float, parts: float = 0) -> tuple:
    """Return a bar, counts and remaining time; `parts` are fractions of items in progress."""
    bar = ProgressBar(total=total, completed=done + parts)
    return bar, f"{done:,}/{total:,}", f"{duration(left)} left" if left > 0 else ""
