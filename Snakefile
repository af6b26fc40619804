# From sweep files to one report:
#
#   configs/sweeps/*.yaml → points → measurements, traces → comparison, charts → report.html
#                         → predictions (device: none) → charts ↗
#                         → solve → points ↗
#                                  on request: all charts → pictures
#
# Mistakes in sweep files are reported here, before any job starts.

import atexit
import gc
import sys
from functools import partial
from pathlib import Path

# In a checkout the library is beside this file, and need not be installed.
HERE = workflow.current_basedir.get_path_or_uri(secret_free=True)
sys.path.insert(0, HERE)

from modelbudget.common.errors import InputError
from modelbudget.common.fingerprint import code, digest
from modelbudget.common.paths import ACCELERATORS
from modelbudget.plan import checksums, orphans, preflight, records, targets
from modelbudget.plan.chosen_sweeps import chosen_sweeps, on_request, sweep_files
from modelbudget.plan.interrupt import end_jobs_when_interrupted
from modelbudget.plan.library_of_jobs import import_from
from modelbudget.plan.terminal.handler import attach
from modelbudget.sweeps.summary import content

import_from(HERE)

# Another workflow that uses this one as a module keeps its own output on the terminal.
if workflow.is_main_process and workflow.modifier.is_main_snakefile():
    terminal = attach(workflow)

try:
    preflight.check_results()
    preflight.check_config(config)
    preflight.allow_modules(config.get("modules"))
    # Do not check devices here if jobs run on other machines (--jobs).
    here = workflow.is_main_process and workflow.nodes is None
    CHOSEN = chosen_sweeps(config.get("sweeps"), here)
    SWEEPS = {one.name: one for one in CHOSEN if not one.sweep.predicts_alone}
    preflight.check_modules(SWEEPS.values())
    PREDICTED = {one.name: one for one in CHOSEN if one.sweep.predicts_alone}
    SHARDS = targets.shards(SWEEPS, config.get("shard"))
    REFERENCED = targets.referenced(SWEEPS)
    IS_OF_ALL = config.get("sweeps") is None
    PAGE = targets.page(SWEEPS.keys() | PREDICTED.keys(), sweep_files(), dict(on_request()))
except InputError as error:
    sys.exit(f"Nothing was started. {len(error.mistakes)} mistake(s):\n{error}")

if workflow.is_main_process and workflow.modifier.is_main_snakefile():
    is_plan = workflow.output_settings.dryrun
    records.keep_beside_results(is_plan)
    records.restore_times()
    if not is_plan:
        lines = [records.remove_lock_of_ended_run(), *orphans.set_aside(sweep_files())]
        for line in filter(None, lines):
            logger.warning(line)
if workflow.is_main_process:
    for line in dict.fromkeys(line for one in CHOSEN for line in one.notes):
        logger.warning(line)

# Skip garbage collection, also at exit: it takes seconds with 10,000 points.
gc.freeze()
atexit.register(gc.freeze)


report: "workflow/report/workflow.rst"


wildcard_constraints:
    sweep=targets.one_of(SWEEPS),
    predicted=targets.one_of(PREDICTED),


include: "workflow/rules/common.smk"
include: "workflow/rules/points.smk"
include: "workflow/rules/solve.smk"
include: "workflow/rules/predictions.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/trace_classes.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/layouts.smk"
include: "workflow/rules/reference_counts.smk"
include: "workflow/rules/gpt2.smk"
include: "workflow/rules/module_trees.smk"
include: "workflow/rules/assets.smk"
include: "workflow/rules/provenance.smk"
include: "workflow/rules/pictures.smk"
include: "workflow/rules/report.smk"


RESULTS = targets.results(SWEEPS, PREDICTED, PAGE, IS_OF_ALL)


# Parameters of every rule: its results are recomputed if its code or the results have changed.
RULES = list(workflow.modifier.rules)  # without those of a workflow that uses this one
for each in RULES:
    each.set_params(code=code(Path(each.script).stem), inputs=inputs, state=partial(state, each))


rule all:
    default_target: True
    input:
        RESULTS,
    message:
        "All results"


rule chart_files:
    input:
        expand("results/{sweep}/charts", sweep=[*SWEEPS, *PREDICTED]),
    message:
        "All charts as files"


onstart:
    end_jobs_when_interrupted()
    if workflow.local_exec:
        # Disable the limit of 100 jobs a second. For it, each selection of jobs starts a timer of
        # one second that triggers another selection: n finished jobs cost n selections a second.
        workflow.scheduler.job_rate_limiter = None
    try:
        preflight.check_renderer(workflow.dag_settings.targets)
    except InputError as error:
        sys.exit(f"Nothing was started. 1 mistake(s):\n{error}")


onsuccess:
    terminal.succeed()


onerror:
    terminal.fail(log)
