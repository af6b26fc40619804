from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import logging
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import write_table
from modelbudget.predict.layout_search import of_sweep
from modelbudget.sweeps.expand import expanded
from modelbudget.sweeps.read import read
from modelbudget.sweeps.sweep_json import check_planned

checked = read(Path(snakemake.input.sweep), Catalogue(MODELS))
check_planned(expanded(checked), snakemake.params.content)
table = of_sweep(checked)
write_table(snakemake.output.parquet, table)
write_table(snakemake.output.csv, table)
logging.info("%d layouts", table.height)
