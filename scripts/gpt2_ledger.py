import polars as pl

from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture
from modelbudget.files import replacing
from modelbudget.huggingface.ledger import ledger
from modelbudget.jobs import start_log
from modelbudget.workflow import MODELS

start_log(snakemake)
catalogue = Catalogue(MODELS)
# The smallest as real tensors; drawing the values of the others would take a minute.
devices = {"gpt-2-124m": "cpu", "gpt-2-355m": "meta", "gpt-2-774m": "meta", "gpt-2-1558m": "meta"}
tables = [
    ledger(catalogue[name].label, named_architecture(catalogue[name]), device)
    for name, device in devices.items()
]
with replacing(snakemake.output.ledger) as path:
    pl.concat(tables).write_parquet(path)
