import logging

import polars as pl

from modelbudget.common.files import read_json, replacing
from modelbudget.common.spreadsheet import csv
from modelbudget.compare.classes import judged, values_of_classes
from modelbudget.compare.comparison import compare, is_compared, verdict
from modelbudget.plan.job_setup import start_log

start_log(snakemake)
comparison = compare(
    pl.read_parquet(snakemake.input.points),
    pl.read_parquet(snakemake.input.predicted),
    pl.read_parquet(snakemake.input.measured),
    read_json(snakemake.input.summary)["swept_fields"],
    read_json(snakemake.input.failures),
    values_of_classes(
        next(map(pl.read_parquet, snakemake.input.traces), None),
        next(map(pl.read_parquet, snakemake.input.counts), None),
    ),
)
with replacing(snakemake.output.parquet) as path:
    comparison.write_parquet(path)
with replacing(snakemake.output.csv) as path:
    path.write_text(csv(comparison), encoding="utf-8")
logging.info("verdict: %s", verdict(comparison))
for rows in (comparison.filter(is_compared()), judged(comparison)):
    for row in rows.filter(~pl.col("agrees")).iter_rows(named=True):
        logging.error("disagrees: %s", row)
