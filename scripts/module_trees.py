from pathlib import Path

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.measurement.trace.inspection import inspect, of_architectures
from modelbudget.measurement.trace.module_tree import tree
from modelbudget.measurement.trace.walkthrough import walkthrough
from modelbudget.report.sampled_models import sampled
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

catalogue = Catalogue(MODELS)
points = {Path(path).parent.name: pl.read_parquet(path) for path in snakemake.input.points}
architectures = {name: [row.architecture for row in rows(table)] for name, table in points.items()}
seconds = {
    architecture.digest(): snakemake.params.timeouts[sweep]
    for sweep, of_sweep in architectures.items()
    for architecture in of_sweep
}
small = {one.digest(): one for sweep in snakemake.params.printed for one in architectures[sweep]}
named = {
    name: (named_architecture(catalogue[name]), Measure().timeout_s)
    for name in snakemake.params.named
}


def limited(models: dict) -> dict:
    """Add the timeout in seconds to each model."""
    return {digest: (one, seconds[digest]) for digest, one in models.items()}


trees = [
    {"model": name, "label": catalogue[name].label, "tree": found}
    for name, found in inspect(tree, named, 1).items()
]
swept = inspect(tree, limited(sampled(architectures)), snakemake.threads)
printed = inspect(repr, limited(small), 1)
walkthroughs = of_architectures(walkthrough, limited(small), 1)
write_json(snakemake.output.trees, trees, indent=1)
write_json(snakemake.output.swept, swept)
write_json(snakemake.output.modules, printed, indent=1)
write_json(snakemake.output.walkthroughs, walkthroughs, indent=1)
