import json
import logging
from pathlib import Path

import polars as pl

from modelbudget import store
from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.table import failures, measured_table
from modelbudget.sources import code, code_of_model
from modelbudget.workflow import MEASUREMENTS, MODELS, failed_at, versions

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
settings = expanded.sweep.measure
points = expanded.points[snakemake.params.shard - 1 :: snakemake.params.shards]
depends_on = (settings.decisive(), code("measure"), versions("torch", "transformers"))
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
failed = failures(results)
# What failed is kept nowhere, so that the next run tries it again.
keys = pl.DataFrame(
    [
        (result.architecture, result.run, key)
        for key, result in zip(missing, results, strict=True)
        if not result.missing
    ],
    dict.fromkeys(("architecture", "run", "key"), pl.String),
    orient="row",
)
if not keys.is_empty():
    store.save(MEASUREMENTS, measured.join(keys, on=["architecture", "run"]))
if known:
    measured = pl.concat([measured, store.load(MEASUREMENTS, list(known))])
with replacing(snakemake.output.measured) as path:
    measured.sort("architecture", "run", "component", "quantity").write_parquet(path)
with replacing(snakemake.output.failures) as path:
    path.write_text(json.dumps(failed, indent=2), encoding="utf-8")
for failure in failed:
    logging.error("not measured: %s", failure)
lost = sum(result.method is None for result in results)
work = {"measured": len(missing) - lost, "reused": len(known), "failed": lost}
logging.info("models: %s", work)
Path(snakemake.log.work).write_text(json.dumps(work), encoding="utf-8")
if lost:
    failed_at(snakemake.wildcards.sweep).touch()
