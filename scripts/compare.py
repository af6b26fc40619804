from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import logging

import polars as pl

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import read_json, write_json
from modelbudget.common.paths import MEASUREMENTS, MODELS, REFERENCE_TRACES
from modelbudget.common.spreadsheet import write_table
from modelbudget.compare.class_verdict import judged, values_of_classes
from modelbudget.compare.comparison import compare, is_compared, verdict
from modelbudget.compare.zoo import zoo
from modelbudget.measurement.cached_points import measure_new
from modelbudget.measurement.reference.cached_classes import traces_of
from modelbudget.predict.predict import predict
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure
from modelbudget.workflow.job_setup import note_failure

given, made = snakemake.input, snakemake.output
points, summary = pl.read_parquet(given.points), read_json(given.summary)
measure = Measure.model_validate(summary["measure"])

predicted = predict(points, measure.quantities)
tried: dict[str, dict] = {"models": {}, "classes": {}}
for path in given.incomplete:
    for name, of_job in read_json(path).items():
        tried[name] |= of_job
models = [row.model for row in rows(points)]
found = measure_new(models, measure, snakemake.threads, MEASUREMENTS, tried["models"])
classes = classes_of(points) if snakemake.params.is_traced else []
traces = traces_of(classes, measure, tried["classes"], snakemake.threads, REFERENCE_TRACES)
if found.models["failed"] or traces.failed:
    note_failure(snakemake.wildcards.sweep)

counts = next(map(pl.read_parquet, given.counts), None)
of_classes = values_of_classes(traces.table if snakemake.params.is_traced else None, counts)
comparison = compare(
    points, predicted, found.table, summary["swept_fields"], found.failures, of_classes
)
logging.info("verdict: %s", verdict(comparison))
for compared in (comparison.filter(is_compared()), judged(comparison)):
    for row in compared.filter(~pl.col("agrees")).iter_rows(named=True):
        logging.error("disagrees: %s", row)
is_zoo = "zoo" in made.keys()  # noqa: SIM118 - Snakemake's list of files has names
counted = zoo(Catalogue(MODELS), points, comparison, counts) if is_zoo else None

tables = {made.predicted: predicted, made.measured: found.table, made.traces: traces.table,
          made.parquet: comparison, made.csv: comparison}  # fmt: skip
tables |= {made.zoo: counted, made.zoo_csv: counted} if is_zoo else {}
for output, table in tables.items():
    write_table(output, table)
write_json(made.failures, found.failures, indent=2)
