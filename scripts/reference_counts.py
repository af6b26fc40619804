from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import polars as pl

from modelbudget.common.paths import REFERENCE_COUNTS
from modelbudget.common.spreadsheet import write_table
from modelbudget.measurement.reference.cached_classes import count_all
from modelbudget.sweeps.class_config import classes_of
from modelbudget.workflow.job_setup import note_failure

classes = classes_of(pl.read_parquet(snakemake.input.points))
counts, has_failed = count_all(classes, snakemake.threads, REFERENCE_COUNTS)
if has_failed:
    note_failure(snakemake.wildcards.sweep)
write_table(snakemake.output.counts, counts)
