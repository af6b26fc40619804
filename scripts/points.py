from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import write_table
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_json import check_planned, summary

catalogue, made = Catalogue(MODELS), snakemake.output
for file, points, about in zip(snakemake.input.sweeps, made.points, made.summaries, strict=True):
    expanded = expand(Path(file), catalogue)
    check_planned(expanded, snakemake.params.content[expanded.name])
    write_table(points, points_table(expanded.points))
    write_json(about, summary(expanded), indent=2, ensure_ascii=False)
