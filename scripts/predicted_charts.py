import polars as pl

from modelbudget.plan.job_setup import start_log
from modelbudget.report.charts.chart_files import save
from modelbudget.report.charts.predicted_ranges import predicted_charts

start_log(snakemake)
totals, shares = (
    pl.read_parquet(table) for table in (snakemake.input.totals, snakemake.input.shares)
)
save(predicted_charts(totals, shares), snakemake.output.charts)
