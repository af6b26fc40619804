import logging

import polars as pl

from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import csv
from modelbudget.compare.zoo import zoo
from modelbudget.plan.job_setup import start_log

start_log(snakemake)
table = zoo(
    Catalogue(MODELS),
    pl.read_parquet(snakemake.input.points),
    pl.read_parquet(snakemake.input.comparison),
    pl.read_parquet(snakemake.input.counts),
)
with replacing(snakemake.output.parquet) as path:
    table.write_parquet(path)
with replacing(snakemake.output.csv) as path:
    path.write_text(csv(table), encoding="utf-8")
logging.info("status: %s", dict(table["status"].value_counts().rows()))
