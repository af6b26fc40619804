import json
from pathlib import Path

from modelbudget.jobs import give_way, start_log

start_log(snakemake)
give_way()

import torch

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand, named_architecture
from modelbudget.files import replacing
from modelbudget.measure.tree import tree
from modelbudget.modules.initialise import uninitialised
from modelbudget.report.chosen import chosen
from modelbudget.workflow import MODELS

catalogue = Catalogue(MODELS)
named = {name: named_architecture(catalogue[name]) for name in snakemake.params.models}
expanded = [expand(Path(sweep), catalogue) for sweep in snakemake.input.sweeps]
models = {sweep.name: [point.architecture for point in sweep.points] for sweep in expanded}
with torch.device("meta"), uninitialised():
    trees = [
        {"model": name, "label": catalogue[name].label, "tree": tree(architecture.build())}
        for name, architecture in named.items()
    ]
    swept = {digest: tree(architecture.build()) for digest, architecture in chosen(models).items()}
    printed = {
        architecture.digest(): repr(architecture.build())
        for sweep in snakemake.params.printed
        for architecture in models[sweep]
    }
with replacing(snakemake.output.trees) as path:
    path.write_text(json.dumps(trees, indent=1), encoding="utf-8")
with replacing(snakemake.output.swept) as path:
    path.write_text(json.dumps(swept), encoding="utf-8")
with replacing(snakemake.output.modules) as path:
    path.write_text(json.dumps(printed, indent=1), encoding="utf-8")
