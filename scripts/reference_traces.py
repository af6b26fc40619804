import polars as pl

from modelbudget.common.files import read_json, replacing
from modelbudget.common.paths import REFERENCE_TRACES, failed_at
from modelbudget.measurement.reference.cached import needed, reference_table, trace_new
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.sweep_file import Measure

start_log(snakemake)
measure = Measure.model_validate(read_json(snakemake.input.summary)["measure"])
wanted = needed(classes_of(pl.read_parquet(snakemake.input.points)), measure)
failed = read_json(snakemake.input.failures)
others = {key: run for key, run in wanted.runs.items() if key not in failed}
failed |= trace_new(others, [measure], snakemake.threads, REFERENCE_TRACES)
with replacing(snakemake.output.traces) as path:
    reference_table(wanted, failed, REFERENCE_TRACES).write_parquet(path)
if failed.keys() & wanted.runs.keys():
    failed_at(snakemake.wildcards.sweep).touch()
