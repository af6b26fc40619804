"""What a run of the Snakefile does around its jobs: checks, chosen sweeps, records, messages."""

import atexit
import gc
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from snakemake.logging import logger

from modelbudget.common.code_digests import code, digest
from modelbudget.common.errors import InputError
from modelbudget.common.files import FILES_READ
from modelbudget.common.number_format import counted
from modelbudget.common.paths import ORPHANS, RESULTS, python_path
from modelbudget.workflow import checksums, preflight, records, targets
from modelbudget.workflow.chosen_sweeps import chosen_sweeps, on_request, sweep_files
from modelbudget.workflow.forked_jobs import fork_jobs
from modelbudget.workflow.interrupt import end_jobs_when_interrupted
from modelbudget.workflow.terminal.handler import attach


class Run:
    """One run of the workflow: the sweeps that were chosen, and what happens before its jobs.

    Ends the process with every mistake of --config and of all sweep files, before any job starts.
    """

    def __init__(self, workflow: Any, config: dict[str, Any], home: str):
        """`home`: the folder of the Snakefile, whose library the jobs import."""
        import_from(home)
        self.workflow = workflow
        # Another workflow that uses this one as a module keeps its own output on the terminal.
        self.is_alone = workflow.is_main_process and workflow.modifier.is_main_snakefile()
        if self.is_alone and workflow.nodes is None and not workflow.output_settings.dryrun:
            _note_digests()
            fork_jobs()
        self.terminal = attach(workflow) if self.is_alone else None
        try:
            self._choose(config)
        except InputError as error:
            _refuse(error)
        if self.is_alone:
            _import_no_frames()
            self._keep_records()
        if workflow.is_main_process:
            for line in dict.fromkeys(line for checked in self.chosen for line in checked.notes):
                logger.warning(line)
        # Skip garbage collection, also at exit: it takes seconds with 10,000 points.
        gc.freeze()
        gc.enable()
        atexit.register(gc.freeze)

    def _choose(self, config: dict[str, Any]) -> None:
        preflight.check_results()
        preflight.check_config(config)
        preflight.allow_modules(config.get("modules"))
        # Do not check devices here if jobs run on other machines (--jobs).
        here = self.workflow.is_main_process and self.workflow.nodes is None
        self.chosen = chosen_sweeps(config.get("sweeps"), here)
        self.measured = {
            checked.name: checked for checked in self.chosen if not checked.sweep.predicts_alone
        }
        preflight.check_modules(self.measured.values())
        self.predicted = {
            checked.name: checked for checked in self.chosen if checked.sweep.predicts_alone
        }
        self.shards = targets.shards(self.measured, config.get("shard"))
        self.is_of_all = config.get("sweeps") is None
        names = self.measured.keys() | self.predicted.keys()
        self.page = targets.page(names, sweep_files(), dict(on_request()))

    def _keep_records(self) -> None:
        is_plan = self.workflow.output_settings.dryrun
        records.keep_beside_results(is_plan)
        records.remove_damaged()
        records.restore_times()
        if not is_plan:
            lines = [records.remove_lock_of_ended_run(), *set_aside(sweep_files())]
            for line in filter(None, lines):
                logger.warning(line)

    def track(self, rules: Iterable[Any], inputs: Callable, state: Callable) -> None:
        """Let the results of rules be recomputed if their code, input or the results changed."""
        rules = list(rules)
        if self.is_alone and not self.workflow.output_settings.dryrun:
            patterns = [pattern for rule in rules for pattern in rule.output]
            records.remove_changed_without_record(
                lambda path: any(pattern.match(path) for pattern in patterns)
            )
        for rule in rules:
            rule.set_params(
                code=code(Path(rule.script).stem), inputs=inputs, state=partial(state, rule)
            )

    def start(self) -> None:
        """Prepare for jobs: how they end when interrupted, and what draws their charts."""
        end_jobs_when_interrupted()
        if self.workflow.local_exec:
            # Disable the limit of 100 jobs a second. For it, each selection of jobs starts a timer
            # of one second that triggers another: n finished jobs cost n selections a second.
            self.workflow.scheduler.job_rate_limiter = None
        try:
            preflight.check_renderer(self.workflow.dag_settings.targets)
        except InputError as error:
            _refuse(error)


def _note_digests() -> None:
    """Note the digests of code and data of the library that are loaded now, and so in forked jobs.

    A file that changes meanwhile then has the digest of what jobs work with.
    """
    loaded = [file for name, module in sys.modules.items() if name.startswith("modelbudget.")
              and (file := module.__file__)]  # fmt: skip
    digest(map(Path, loaded))
    for path in FILES_READ:
        checksums.of_data(os.path.relpath(path))


def _import_no_frames() -> None:
    """Let Snakemake import no package of frames, which takes it half a second.

    It would only ask whether a parameter of a rule is a frame, which none is here.
    """
    for package in ("pandas", "polars"):
        sys.modules.setdefault(package, cast(ModuleType, None))  # its import is refused


def _refuse(error: InputError) -> None:
    sys.exit(f"Nothing was started. {counted(len(error.mistakes), 'mistake')}:\n{error}")


def set_aside(sweeps: Collection[str]) -> Iterator[str]:
    """Move the results of each sweep without a file to `results/.orphans`, and say so.

    Nothing reads that folder. Measurements stay in their cache, so that a renamed sweep is not
    measured again.
    """
    for summary in sorted(RESULTS.glob("*/sweep.json")):
        folder = summary.parent
        if folder.name not in sweeps:
            aside = RESULTS / ORPHANS / folder.name
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            yield f"{folder}: its sweep file is gone; moved to {aside}"


def import_from(folder: str) -> None:
    """Let jobs import the library in a folder, whatever checkout the environment is of.

    And let them write its bytecode: where an image forbids that, each job and each of its worker
    processes compiles all that it imports.
    """
    os.environ["PYTHONPATH"] = python_path(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
