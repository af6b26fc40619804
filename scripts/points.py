import json
from pathlib import Path

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.paths import MODELS
from modelbudget.points import points_table
from modelbudget.summary import check_planned, summary

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
check_planned(expanded, snakemake.params.content)
with replacing(snakemake.output.points) as path:
    points_table(expanded).write_parquet(path)
with replacing(snakemake.output.summary) as path:
    path.write_text(json.dumps(summary(expanded), indent=2, ensure_ascii=False), encoding="utf-8")
