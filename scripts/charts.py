import json
from pathlib import Path

import polars as pl

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.files import replacing
from modelbudget.plan.job_setup import start_log
from modelbudget.report.charts.files import save
from modelbudget.report.charts.layouts import layouts_charts
from modelbudget.report.charts.select import charts_of_classes, charts_of_sweep
from modelbudget.report.charts.solve import solve_charts
from modelbudget.report.charts.zoo import zoo_charts

start_log(snakemake)
summary = json.loads(Path(snakemake.input.summary).read_text(encoding="utf-8"))
comparison = pl.read_parquet(snakemake.input.comparison)
devices = accelerators(Path(snakemake.input.accelerators))
if snakemake.input.solved:  # solutions, frontier, published models
    found = solve_charts(*map(pl.read_parquet, snakemake.input.solved), summary["solve"]["best"])
else:
    found = charts_of_sweep(summary["axes"], comparison, devices)
for zoo in snakemake.input.zoo:  # empty, or the one table of all published models
    found |= zoo_charts(pl.read_parquet(zoo), comparison)
for path in snakemake.input.traces:  # empty, or the one table of traced classes
    found |= charts_of_classes(
        pl.read_parquet(snakemake.input.points), comparison, pl.read_parquet(path)
    )
for path in snakemake.input.layouts:  # empty, or the one table of layouts
    found |= layouts_charts(pl.read_parquet(path), devices)
with replacing(snakemake.output.charts) as path:
    save(found, path)
