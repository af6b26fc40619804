import json
from pathlib import Path

import polars as pl

from modelbudget.common.files import read_json, replacing
from modelbudget.common.paths import MEASUREMENTS, failed_at
from modelbudget.measurement.cached import measure_new
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

start_log(snakemake)
points = pl.read_parquet(snakemake.input.points)
measure = Measure.model_validate(read_json(snakemake.input.summary)["measure"])
shard = points[snakemake.params.shard - 1 :: snakemake.params.shards]
found = measure_new([row.model for row in rows(shard)], measure, snakemake.threads, MEASUREMENTS)
with replacing(snakemake.output.measured) as path:
    found.table.write_parquet(path)
with replacing(snakemake.output.failures) as path:
    path.write_text(json.dumps(found.failures, indent=2), encoding="utf-8")
Path(snakemake.log.work).write_text(json.dumps(found.models), encoding="utf-8")
if found.models["failed"]:
    failed_at(snakemake.wildcards.sweep).touch()
