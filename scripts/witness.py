import logging
from pathlib import Path

import polars as pl

from modelbudget import store
from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.huggingface.table import witness_table
from modelbudget.jobs import start_log
from modelbudget.sources import code, versions
from modelbudget.workflow import MODELS, WITNESSES, failed_at

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
depends_on = (code("huggingface", "measure"), versions("torch", "transformers"))
# Dictionary: a model that stands at two points is counted once.
wanted = {
    store.key(point.architecture.digest(), point.transformers, *depends_on): (
        point.architecture,
        point.transformers,
    )
    for point in expanded.points
    if point.transformers
}
known = store.known(WITNESSES, list(wanted))
missing = {key: pair for key, pair in wanted.items() if key not in known}
logging.info("%d classes counted before, %d to count", len(known), len(missing))
found = []
if missing:
    # Imports torch and transformers: seconds, for those who count.
    from modelbudget.huggingface.witness import witnesses

    found = witnesses(missing.values(), snakemake.threads)

witness = witness_table(found)
# What failed is kept nowhere, so that the next run tries it again.
kept = witness.with_columns(key=pl.Series(list(missing), dtype=pl.String)).filter(
    pl.Series([not one.failed for one in found], dtype=pl.Boolean)
)
if not kept.is_empty():
    store.save(WITNESSES, kept)
if kept.height < witness.height:
    failed_at(snakemake.wildcards.sweep).touch()
if known:
    witness = pl.concat([witness, store.load(WITNESSES, list(known))])
with replacing(snakemake.output.witness) as path:
    witness.sort("architecture", "class").write_parquet(path)
