from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import logging
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.code_digests import check_unchanged
from modelbudget.common.files import replacing, write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import write_table
from modelbudget.predict.axis_summary import AxisSummary
from modelbudget.predict.predicted_grids import frames, groups_of, predicted, summary
from modelbudget.sweeps.read import read

sweep = read(Path(snakemake.input.sweep), Catalogue(MODELS))
check_unchanged(snakemake.input, snakemake.params.content)
found = predicted(sweep)
by_axis = AxisSummary(found.sweep.axes(), found.sweep.measure.quantities, groups_of(found))
with replacing(snakemake.output.predictions) as folder:
    folder.mkdir()
    for number, rows in enumerate(frames(found, snakemake.threads)):
        rows.write_parquet(folder / f"part-{number:05}.parquet")
        by_axis.add(rows)
logging.info("%d of %d combinations predicted", by_axis.rows, found.combinations)
write_table(snakemake.output.totals, by_axis.totals())
write_table(snakemake.output.shares, by_axis.shares())
write_json(snakemake.output.summary, summary(found, by_axis.rows), indent=2, ensure_ascii=False)
