from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl

from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.compare.ledger import ledger
from modelbudget.compare.surgery import surgery
from modelbudget.sweeps.derive import named_architecture

catalogue = Catalogue(MODELS)
sizes = ("gpt-2-124m", "gpt-2-355m", "gpt-2-774m", "gpt-2-1558m")
models = {catalogue[name].label: named_architecture(catalogue[name]) for name in sizes}
with replacing(snakemake.output.ledger) as path:
    pl.concat([ledger(label, a, "meta") for label, a in models.items()]).write_parquet(path)
with replacing(snakemake.output.surgery) as path:
    surgery(next(iter(models.values()))).write_parquet(path)
