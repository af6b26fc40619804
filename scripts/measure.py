import logging
from pathlib import Path

import polars as pl

from modelbudget import store
from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.table import measured_table
from modelbudget.sources import code, code_of_model
from modelbudget.workflow import MEASUREMENTS, MODELS, versions

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
settings = expanded.sweep.measure
depends_on = (settings.model_dump(), code("measure"), versions("torch", "transformers"))
# Dictionaries: a model that stands at two points is measured once.
architectures = {point.architecture.digest(): point.architecture for point in expanded.points}
keys = {
    digest: store.key(digest, code_of_model(type(a)), *depends_on)
    for digest, a in architectures.items()
}
known = store.known(MEASUREMENTS, list(keys.values()))
missing = [a for digest, a in architectures.items() if keys[digest] not in known]
logging.info("%d models measured before, %d to measure", len(known), len(missing))
results = []
if missing:
    # Imports torch: a second, for those who measure.
    from modelbudget.measure.pool import measure_all

    results = measure_all(
        missing, settings.device, settings.dtype, settings.memory_share, snakemake.threads
    )

measured = measured_table(results, settings.quantities)
if missing:
    new = pl.col("architecture").replace_strict(keys, return_dtype=pl.String)
    store.save(MEASUREMENTS, measured.with_columns(key=new))
if known:
    measured = pl.concat([measured, store.load(MEASUREMENTS, list(known))])
with replacing(snakemake.output.measured) as path:
    measured.sort("architecture", "component", "quantity").write_parquet(path)
