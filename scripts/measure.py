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
points = expanded.points[snakemake.params.shard - 1 :: snakemake.params.shards]
depends_on = (settings.model_dump(), code("measure"), versions("torch", "transformers"))
# Dictionary: what stands at two points is measured once.
models = {
    store.key(
        p.architecture.digest(), p.run.digest(), code_of_model(type(p.architecture)), *depends_on
    ): (p.architecture, p.run)
    for p in points
}
known = store.known(MEASUREMENTS, list(models))
missing = {key: model for key, model in models.items() if key not in known}
logging.info("%d models measured before, %d to measure", len(known), len(missing))
results = []
if missing:
    # Imports torch: a second, for those who measure.
    from modelbudget.measure.pool import measure_all

    results = measure_all(list(missing.values()), settings, snakemake.threads)

measured = measured_table(results, settings.quantities)
if missing:
    keys = pl.DataFrame(
        [(a.digest(), run.digest(), key) for key, (a, run) in missing.items()],
        ["architecture", "run", "key"],
        orient="row",
    )
    store.save(MEASUREMENTS, measured.join(keys, on=["architecture", "run"]))
if known:
    measured = pl.concat([measured, store.load(MEASUREMENTS, list(known))])
with replacing(snakemake.output.measured) as path:
    measured.sort("architecture", "run", "component", "quantity").write_parquet(path)
