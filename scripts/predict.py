import polars as pl

from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.predict import predict

start_log(snakemake)
points = pl.read_parquet(snakemake.input.points)
with replacing(snakemake.output.predicted) as path:
    predict(points, snakemake.params.quantities).write_parquet(path)
