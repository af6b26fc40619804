import json

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.report.assets import assets

made = assets(Catalogue(MODELS))
with replacing(snakemake.output.calculator) as path:
    path.write_text(json.dumps(made.calculator, ensure_ascii=False), encoding="utf-8")
with replacing(snakemake.output.vega) as path:
    path.write_text(made.vega, encoding="utf-8")
