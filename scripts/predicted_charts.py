import polars as pl

from modelbudget.common.files import replacing
from modelbudget.plan.job_setup import start_log
from modelbudget.report.charts.chart_files import save
from modelbudget.report.charts.predicted_ranges import predicted_charts

start_log(snakemake)
totals, shares = (
    pl.read_parquet(table) for table in (snakemake.input.totals, snakemake.input.shares)
)
with replacing(snakemake.output.charts) as path:
    save(predicted_charts(totals, shares), path)
