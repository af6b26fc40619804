# From sweep files to one report:
#
#   configs/sweeps/*.yaml → points → measurements, traces → comparison, charts → report.html
#                         → predictions (device: none) → charts ↗
#                         → solve → points ↗
#                                  on request: all charts → pictures
#
# Mistakes in sweep files are reported here, before any job starts.

import sys

# In a checkout the library is beside this file, and need not be installed.
HERE = workflow.current_basedir.get_path_or_uri(secret_free=True)
sys.path.insert(0, HERE)

from modelbudget.common.code_digests import digest
from modelbudget.common.paths import ACCELERATORS
from modelbudget.workflow import checksums, targets
from modelbudget.workflow.setup import Run
from modelbudget.sweeps.sweep_json import content

RUN = Run(workflow, config, HERE)
SWEEPS, PREDICTED = RUN.measured, RUN.predicted
REFERENCED = targets.writing(SWEEPS, "reference_traces")


report: "workflow/report/workflow.rst"


wildcard_constraints:
    sweep=targets.one_of(SWEEPS),
    predicted=targets.one_of(PREDICTED),


include: "workflow/rules/common.smk"
include: "workflow/rules/points.smk"
include: "workflow/rules/solve.smk"
include: "workflow/rules/predictions.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/fit.smk"
include: "workflow/rules/layouts.smk"
include: "workflow/rules/reference_counts.smk"
include: "workflow/rules/gpt2.smk"
include: "workflow/rules/module_trees.smk"
include: "workflow/rules/calculator.smk"
include: "workflow/rules/pictures.smk"
include: "workflow/rules/report.smk"


RULES = list(workflow.modifier.rules)  # without those of a workflow that uses this one
RUN.track(RULES, inputs, state)


rule all:
    default_target: True
    input:
        targets.results(SWEEPS, PREDICTED, RUN.page, RUN.is_of_all),
    message:
        "All results"


rule chart_files:
    input:
        expand("results/{sweep}/charts", sweep=[*SWEEPS, *PREDICTED]),
    message:
        "All charts as files"


onstart:
    RUN.start()


onsuccess:
    RUN.terminal.succeed()


onerror:
    RUN.terminal.fail(log)
