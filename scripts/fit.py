from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import logging
from pathlib import Path

import polars as pl

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.files import read_json
from modelbudget.common.paths import MEASUREMENTS
from modelbudget.common.spreadsheet import write_table
from modelbudget.compare.largest_measured import measure_solutions
from modelbudget.predict.largest_that_fits import cells, fit_table, measured_on
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

points = rows(pl.read_parquet(snakemake.input.points))
summary = read_json(snakemake.input.summary)
measure = Measure.model_validate(summary["measure"])
devices = accelerators(Path(snakemake.input.accelerators))
solved = list(cells(points, measure.quantities, summary["fit"], devices))
chosen = measured_on(summary, devices)
measured = [cell for cell in solved if cell.device in chosen]
table = fit_table(solved, *measure_solutions(measured, measure, snakemake.threads, MEASUREMENTS))
write_table(snakemake.output.parquet, table)
write_table(snakemake.output.csv, table)
logging.info("confirmed by measuring: %s", dict(table["confirmed"].value_counts().rows()))
