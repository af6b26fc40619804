import polars as pl

from modelbudget.common.files import read_json, write_json
from modelbudget.common.paths import REFERENCE_TRACES
from modelbudget.measurement.reference.cached_classes import needed, trace_new
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.sweep_file import Measure

start_log(snakemake)
settings = [
    Measure.model_validate(read_json(path)["measure"]) for path in snakemake.input.summaries
]
runs = {}
for points, of_sweep in zip(snakemake.input.points, settings, strict=True):
    runs |= needed(classes_of(pl.read_parquet(points)), of_sweep).runs
failed = trace_new(runs, settings, snakemake.threads, REFERENCE_TRACES)
write_json(snakemake.output.failures, failed, indent=2)
