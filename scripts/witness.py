from pathlib import Path

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.huggingface.witness import witnesses
from modelbudget.jobs import start_log
from modelbudget.workflow import MODELS

start_log(snakemake)
expanded = expand(Path(snakemake.input.sweep), Catalogue(MODELS))
wanted = [(point.architecture, point.transformers) for point in expanded.points]
found = witnesses([(a, kind) for a, kind in wanted if kind], snakemake.threads)

# Imported after the pool has ended: Polars' threads and forked processes do not mix.
from modelbudget.huggingface.table import witness_table  # noqa: E402

with replacing(snakemake.output.witness) as path:
    witness_table(found).write_parquet(path)
