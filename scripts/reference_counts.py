import polars as pl

from modelbudget.common.files import replacing
from modelbudget.common.paths import REFERENCE_COUNTS, failed_at
from modelbudget.measurement.reference.cached import count_all
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.class_config import classes_of

start_log(snakemake)
classes = classes_of(pl.read_parquet(snakemake.input.points))
counts, has_failed = count_all(classes, snakemake.threads, REFERENCE_COUNTS)
if has_failed:
    failed_at(snakemake.wildcards.sweep).touch()
with replacing(snakemake.output.counts) as path:
    counts.write_parquet(path)
