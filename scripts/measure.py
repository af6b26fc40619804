import json
from pathlib import Path

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.kept import measure_new
from modelbudget.workflow import MEASUREMENTS, MODELS, failed_at

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
points = expanded.points[snakemake.params.shard - 1 :: snakemake.params.shards]
models = ((point.architecture, point.run) for point in points)
found = measure_new(models, expanded.sweep.measure, snakemake.threads, MEASUREMENTS)
with replacing(snakemake.output.measured) as path:
    found.table.write_parquet(path)
with replacing(snakemake.output.failures) as path:
    path.write_text(json.dumps(found.failures, indent=2), encoding="utf-8")
Path(snakemake.log.work).write_text(json.dumps(found.models), encoding="utf-8")
if found.models["failed"]:
    failed_at(snakemake.wildcards.sweep).touch()
