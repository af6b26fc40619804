import json
from pathlib import Path

import polars as pl

from modelbudget.common.files import replacing
from modelbudget.measurement.table import ORDER
from modelbudget.plan.job_setup import start_log

start_log(snakemake)
# Unique, since a model with points in two shards was measured in both.
measured = pl.concat(map(pl.read_parquet, snakemake.input.measured)).unique()
failures = (Path(path).read_text(encoding="utf-8") for path in snakemake.input.failures)
failed = [failure for text in failures for failure in json.loads(text)]
with replacing(snakemake.output.measured) as path:
    measured.sort(ORDER).write_parquet(path)
with replacing(snakemake.output.failures) as path:
    path.write_text(json.dumps(failed, indent=2), encoding="utf-8")
