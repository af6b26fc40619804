import polars as pl

from modelbudget.files import replacing
from modelbudget.jobs import start_log

start_log(snakemake)
# Unique: a model that stands at points of two shards was measured in both.
measured = pl.concat(map(pl.read_parquet, snakemake.input.shards)).unique()
with replacing(snakemake.output.measured) as path:
    measured.sort("architecture", "run", "component", "quantity").write_parquet(path)
