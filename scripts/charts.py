import json
from pathlib import Path

import polars as pl

from modelbudget.charts.choose import charts
from modelbudget.charts.files import save
from modelbudget.files import replacing_folder
from modelbudget.jobs import start_log

start_log(snakemake)
summary = json.loads(Path(snakemake.input.summary).read_text(encoding="utf-8"))
comparison = pl.read_parquet(snakemake.input.comparison)
with replacing_folder(snakemake.output.charts) as folder:
    for name, chart in charts(summary["axes"], comparison).items():
        save(chart, folder / name)
