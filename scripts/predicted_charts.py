import polars as pl

from modelbudget.charts.files import save
from modelbudget.charts.predicted import predicted_charts
from modelbudget.files import replacing
from modelbudget.jobs import start_log

start_log(snakemake)
totals, shares = (
    pl.read_parquet(table) for table in (snakemake.input.totals, snakemake.input.shares)
)
with replacing(snakemake.output.charts) as path:
    save(predicted_charts(totals, shares), path)
