import polars as pl

from modelbudget.files import read_json, replacing
from modelbudget.jobs import start_log
from modelbudget.predict import predict

start_log(snakemake)
points = pl.read_parquet(snakemake.input.points)
quantities = read_json(snakemake.input.summary)["measure"]["quantities"]
with replacing(snakemake.output.predicted) as path:
    predict(points, quantities).write_parquet(path)
