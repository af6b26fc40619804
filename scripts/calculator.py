import json

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.report.assets import calculator

with replacing(snakemake.output.calculator) as path:
    section = calculator(Catalogue(MODELS))
    path.write_text(json.dumps(section, ensure_ascii=False), encoding="utf-8")
