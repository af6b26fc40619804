import os

from modelbudget.workflow.job_setup import start_log

start_log(snakemake)
os.nice(10)  # its processes fill all cores: jobs with a single process, as the calculator, go first

import json
from itertools import islice
from pathlib import Path

import polars as pl

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.files import read_json, write_json
from modelbudget.common.paths import ACCELERATORS, MEASUREMENTS, REFERENCE_COUNTS, REFERENCE_TRACES
from modelbudget.compare.largest_measured import measure_solutions
from modelbudget.measurement.cached_points import measure_new
from modelbudget.measurement.reference.cached_classes import begin_counts, begin_new, needed
from modelbudget.predict.largest_that_fits import cells, measured_on
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

first, every = int(snakemake.wildcards.shard) - 1, int(snakemake.wildcards.shards)
sweeps, incomplete, work, traced, settings, counted = {}, {}, {}, {}, [], []
for table, summary in zip(snakemake.input.points, snakemake.input.summaries, strict=True):
    sweep, points, about = Path(table).parent.name, pl.read_parquet(table), read_json(summary)
    measure = Measure.model_validate(about["measure"])
    sweeps[sweep] = points[first::every], about, measure
    if sweep in snakemake.params.traced:
        traced |= needed(classes_of(points), measure).runs
        settings.append(measure)
    if sweep in snakemake.params.counted:
        counted += classes_of(sweeps[sweep][0])
# Classes are traced and counted while models are measured.
shard = dict(islice(sorted(traced.items()), first, None, every))
traces = begin_new(shard, settings, snakemake.threads, REFERENCE_TRACES)
counts = begin_counts(counted, snakemake.threads, REFERENCE_COUNTS)
for sweep, (points, about, measure) in sweeps.items():
    models = [row.model for row in rows(points)]
    found = measure_new(models, measure, snakemake.threads, MEASUREMENTS, incomplete)
    incomplete |= found.incomplete
    work[sweep] = found.models
    devices = measured_on(about, accelerators(ACCELERATORS))
    solved = cells(rows(points), measure.quantities, about["fit"], devices)
    measure_solutions(solved, measure, snakemake.threads, MEASUREMENTS)
failed = traces()
counts()
write_json(snakemake.output.incomplete, {"models": incomplete, "classes": failed}, indent=2)
Path(snakemake.log.work).write_text(json.dumps(work), encoding="utf-8")
