import json
from pathlib import Path

from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.summary import check_planned, summary

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
check_planned(expanded, snakemake.params.content)
with replacing(snakemake.output.points) as path:
    points_table(expanded).write_parquet(path)
with replacing(snakemake.output.summary) as path:
    path.write_text(json.dumps(summary(expanded), indent=2, ensure_ascii=False), encoding="utf-8")
