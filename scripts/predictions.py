import json
import logging
from pathlib import Path

from modelbudget.along import Along
from modelbudget.catalogue import Catalogue
from modelbudget.expand import read
from modelbudget.files import replacing, replacing_folder
from modelbudget.jobs import start_log
from modelbudget.paths import MODELS
from modelbudget.predictions import frames, groups_of, predicted, summary
from modelbudget.sources import check_unchanged

start_log(snakemake)
asked = read(Path(snakemake.input.sweep), Catalogue(MODELS))
check_unchanged(snakemake.input, snakemake.params.content)
found = predicted(asked)
along = Along(found.sweep.axes(), found.sweep.measure.quantities, groups_of(found))
with replacing_folder(snakemake.output.predictions) as folder:
    for number, rows in enumerate(frames(found, snakemake.threads)):
        rows.write_parquet(folder / f"part-{number:05}.parquet")
        along.add(rows)
logging.info("%d of %d combinations predicted", along.rows, found.combinations)
with replacing(snakemake.output.totals) as path:
    along.totals().write_parquet(path)
with replacing(snakemake.output.shares) as path:
    along.shares().write_parquet(path)
with replacing(snakemake.output.summary) as path:
    text = json.dumps(summary(found, along.rows), indent=2, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
