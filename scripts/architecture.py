import json
from pathlib import Path

from modelbudget.jobs import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl
import torch

from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture
from modelbudget.files import replacing
from modelbudget.measure.tree import tree
from modelbudget.modules.initialise import uninitialised
from modelbudget.paths import MODELS
from modelbudget.points import models
from modelbudget.report.chosen import chosen

catalogue = Catalogue(MODELS)
named = {name: named_architecture(catalogue[name]) for name in snakemake.params.named}
points = {Path(path).parent.name: pl.read_parquet(path) for path in snakemake.input.points}
architectures = {name: [a for a, _ in models(table)] for name, table in points.items()}
with torch.device("meta"), uninitialised():
    trees = [
        {"model": name, "label": catalogue[name].label, "tree": tree(architecture.build())}
        for name, architecture in named.items()
    ]
    swept = {
        digest: tree(architecture.build()) for digest, architecture in chosen(architectures).items()
    }
    printed = {
        architecture.digest(): repr(architecture.build())
        for sweep in snakemake.params.printed
        for architecture in architectures[sweep]
    }
with replacing(snakemake.output.trees) as path:
    path.write_text(json.dumps(trees, indent=1), encoding="utf-8")
with replacing(snakemake.output.swept) as path:
    path.write_text(json.dumps(swept), encoding="utf-8")
with replacing(snakemake.output.modules) as path:
    path.write_text(json.dumps(printed, indent=1), encoding="utf-8")
