import logging

import polars as pl

from modelbudget.common import store
from modelbudget.common.files import replacing
from modelbudget.common.fingerprint import code_of, versions
from modelbudget.common.paths import REFERENCE_COUNTS, failed_at
from modelbudget.measurement.reference.table import witness_table
from modelbudget.plan.job_setup import start_log
from modelbudget.sweeps.points_table import rows

start_log(snakemake)
points = pl.read_parquet(snakemake.input.points).drop_nulls("transformers")
depends_on = (
    code_of("modelbudget.measurement.reference.witness"),
    versions("torch", "transformers"),
)
# A dictionary, so that a model with two points is counted once.
wanted = {
    store.key(row.architecture.digest(), kind, *depends_on): (row.architecture, kind)
    for row, kind in zip(rows(points), points["transformers"], strict=True)
}
known = store.known(REFERENCE_COUNTS, list(wanted))
missing = {key: pair for key, pair in wanted.items() if key not in known}
logging.info("%d classes from the cache, %d to count", len(known), len(missing))
found = []
if missing:
    # Imported here, since torch and transformers take seconds to import.
    from modelbudget.measurement.reference.witness import witnesses

    found = witnesses(missing.values(), snakemake.threads)

counts = witness_table(found)
# Failures are not cached, so that the next run tries them again.
kept = counts.with_columns(key=pl.Series(list(missing), dtype=pl.String)).filter(
    pl.Series([not one.failed for one in found], dtype=pl.Boolean)
)
if not kept.is_empty():
    store.save(REFERENCE_COUNTS, kept)
if kept.height < counts.height:
    failed_at(snakemake.wildcards.sweep).touch()
if known:
    counts = pl.concat([counts, store.load(REFERENCE_COUNTS, list(known)).drop("key")])
with replacing(snakemake.output.counts) as path:
    counts.sort("architecture", "class").write_parquet(path)
