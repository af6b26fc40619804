import json
from pathlib import Path

import polars as pl

from modelbudget.common.files import read_json, write_json
from modelbudget.common.paths import MEASUREMENTS
from modelbudget.measurement.cached_points import measure_new
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

start_log(snakemake)
first, every = int(snakemake.wildcards.shard) - 1, int(snakemake.wildcards.shards)
incomplete, work = {}, {}
for table, summary in zip(snakemake.input.points, snakemake.input.summaries, strict=True):
    models = [row.model for row in rows(pl.read_parquet(table)[first::every])]
    measure = Measure.model_validate(read_json(summary)["measure"])
    found = measure_new(models, measure, snakemake.threads, MEASUREMENTS, incomplete)
    incomplete |= found.incomplete
    work[Path(table).parent.name] = found.models
write_json(snakemake.output.incomplete, incomplete, indent=2)
Path(snakemake.log.work).write_text(json.dumps(work), encoding="utf-8")
