import json
from pathlib import Path

import polars as pl

from modelbudget.accelerators import accelerators
from modelbudget.charts.choose import charts_of_all
from modelbudget.charts.files import save
from modelbudget.charts.zoo import zoo_charts
from modelbudget.files import replacing
from modelbudget.jobs import start_log

start_log(snakemake)
summary = json.loads(Path(snakemake.input.summary).read_text(encoding="utf-8"))
comparison = pl.read_parquet(snakemake.input.comparison)
found = charts_of_all(summary["axes"], comparison, accelerators(Path(snakemake.input.accelerators)))
for zoo in snakemake.input.zoo:  # none, or the one table of all named models
    found |= zoo_charts(pl.read_parquet(zoo), comparison)
with replacing(snakemake.output.charts) as path:
    save(found, path)
