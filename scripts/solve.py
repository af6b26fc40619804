from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import logging
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.code_digests import check_unchanged
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import write_table
from modelbudget.predict.shape_search import checked_grids, of_points, published, solved
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.read import read
from modelbudget.sweeps.sweep_json import summary

catalogue = Catalogue(MODELS)
checked = read(Path(snakemake.input.sweep), catalogue)
check_unchanged(snakemake.input, snakemake.params.content)
found = solved(checked_grids(checked), snakemake.threads)
logging.info("%s", found.proof)
expanded = of_points(checked, found.frontier)
for table, output in (
    (found.solutions, snakemake.output.solutions),
    (found.frontier, snakemake.output.frontier),
    (published(catalogue, checked.sweep), snakemake.output.published),
    (points_table(expanded.points), snakemake.output.points),
):
    write_table(output, table)
write_table(snakemake.output.csv, found.frontier)
text = summary(expanded) | {"solved": found.proof}
write_json(snakemake.output.summary, text, indent=2, ensure_ascii=False)
