import polars as pl

from modelbudget.charts.files import save_all
from modelbudget.charts.predicted import predicted_charts
from modelbudget.files import replacing_folder
from modelbudget.jobs import start_log

start_log(snakemake)
totals, shares = (
    pl.read_parquet(table) for table in (snakemake.input.totals, snakemake.input.shares)
)
with replacing_folder(snakemake.output.charts) as folder:
    save_all(predicted_charts(totals, shares), folder)
