from pathlib import Path

from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import polars as pl

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.measurement.trace.module_tree import inspect, of_architectures, tree
from modelbudget.measurement.trace.walkthrough import walkthrough
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.points_table import rows
from modelbudget.sweeps.sweep_file import Measure

catalogue = Catalogue(MODELS)
small = {
    row.architecture.digest(): (row.architecture, snakemake.params.timeouts[Path(path).parent.name])
    for path in snakemake.input.points
    for row in rows(pl.read_parquet(path))
}
named = {
    name: (named_architecture(catalogue[name]), Measure().timeout_s)
    for name in snakemake.params.named
}
trees = [
    {"model": name, "label": catalogue[name].label, "tree": found}
    for name, found in inspect(tree, named, 1).items()
]
printed = inspect(repr, small, 1)
walkthroughs = of_architectures(walkthrough, small, 1)
write_json(snakemake.output.trees, trees, indent=1)
write_json(snakemake.output.modules, printed, indent=1)
write_json(snakemake.output.walkthroughs, walkthroughs, indent=1)
