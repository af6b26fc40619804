import polars as pl

from modelbudget.common.files import read_json, replacing
from modelbudget.plan.job_setup import start_log
from modelbudget.predict.predict import predict

start_log(snakemake)
points = pl.read_parquet(snakemake.input.points)
quantities = read_json(snakemake.input.summary)["measure"]["quantities"]
with replacing(snakemake.output.predicted) as path:
    predict(points, quantities).write_parquet(path)
