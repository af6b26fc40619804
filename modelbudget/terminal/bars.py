"""Bars at the foot of a terminal: one for the run, and one for each job that takes longer."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from modelbudget.progress import Progress, progress_file, read_progress
from modelbudget.terminal.summary import Run, duration

SECONDS_BEFORE_A_BAR = 1
PER_SECOND = 2


class Bars:
    """Drawn while the jobs run, and gone when they have ended."""

    def __init__(self, run: Run, nocolor: bool):
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
        self.console.show_cursor()  # a run that is killed leaves it as it is

    def print(self, text: str, color: str) -> None:
        """Lines above the bars."""
        self.console.print(Text(text, style=color), soft_wrap=True)

    def stop(self) -> None:
        self.live.stop()

    def _table(self) -> Table:
        """Called by a thread of rich's, while jobs begin and end."""
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
        for job, progress in zip(jobs, inside, strict=True):
            lasted = now - job.started
            if progress:
                table.add_row(*_row(job.message, progress))
            elif lasted >= SECONDS_BEFORE_A_BAR:
                table.add_row(job.message, "", "", duration(lasted))
        parts = sum(each.done / each.total for each in inside if each)
        run, lasted = self.run, self.run.last - self.started
        waited = now - run.last
        table.add_row(*_row("all jobs", Progress(run.done, run.total, lasted), parts, waited))
        return table


def _row(label: str, progress: Progress, parts: float = 0, waited: float = 0) -> tuple:
    """Label, bar, counts and the time that is left if it goes on as fast as before. The bar counts
    `parts` of items, too; `waited` is how many seconds ago the last item was done.
    """
    done, total, seconds = progress
    left = seconds / done * (total - done) - waited if done else 0
    bar = ProgressBar(total=total, completed=done + parts)
    return label, bar, f"{done:,}/{total:,}", f"{duration(left)} left" if left > 0 else ""
