from pathlib import Path

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.pool import measure_all
from modelbudget.workflow import MODELS

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
settings = expanded.sweep.measure
# Dictionary: what stands at two points is measured once.
models = {
    (p.architecture.digest(), p.run.digest()): (p.architecture, p.run) for p in expanded.points
}
results = measure_all(list(models.values()), settings, snakemake.threads)

# Imported after the pool has ended: Polars' threads and forked processes do not mix.
from modelbudget.measure.table import measured_table  # noqa: E402

with replacing(snakemake.output.measured) as path:
    measured_table(results, settings.quantities).write_parquet(path)
