import logging
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import csv
from modelbudget.plan.job_setup import start_log
from modelbudget.predict.layouts import of_sweep
from modelbudget.sweeps.expand import expanded
from modelbudget.sweeps.read import read
from modelbudget.sweeps.sweep_json import check_planned

start_log(snakemake)
checked = read(Path(snakemake.input.sweep), Catalogue(MODELS))
check_planned(expanded(checked), snakemake.params.content)
table = of_sweep(checked)
with replacing(snakemake.output.parquet) as path:
    table.write_parquet(path)
with replacing(snakemake.output.csv) as path:
    path.write_text(csv(table), encoding="utf-8")
logging.info("%d layouts", table.height)
