import logging
from pathlib import Path

from modelbudget.accelerators import accelerators
from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.fit import cells, fit_table
from modelbudget.jobs import start_log
from modelbudget.measure.fitted import measure_solutions
from modelbudget.spreadsheet import csv
from modelbudget.workflow import MEASUREMENTS, MODELS

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
solved = list(cells(expanded, accelerators(Path(snakemake.input.accelerators))))
settings = expanded.sweep.measure
table = fit_table(solved, *measure_solutions(solved, settings, snakemake.threads, MEASUREMENTS))
with replacing(snakemake.output.parquet) as path:
    table.write_parquet(path)
with replacing(snakemake.output.csv) as path:
    path.write_text(csv(table), encoding="utf-8")
logging.info("confirmed by measuring: %s", dict(table["confirmed"].value_counts().rows()))
