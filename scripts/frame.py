import json

from modelbudget.jobs import give_way, start_log

start_log(snakemake)
give_way()

from modelbudget.catalogue import Catalogue
from modelbudget.files import replacing
from modelbudget.paths import MODELS
from modelbudget.report.frame import frame

made = frame(Catalogue(MODELS))
with replacing(snakemake.output.explorer) as path:
    path.write_text(json.dumps(made.explorer, ensure_ascii=False), encoding="utf-8")
with replacing(snakemake.output.vega) as path:
    path.write_text(made.vega, encoding="utf-8")
