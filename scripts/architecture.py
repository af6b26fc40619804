import json

import torch

from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.tree import tree
from modelbudget.modules.initialise import uninitialised
from modelbudget.workflow import MODELS

start_log(snakemake)
catalogue = Catalogue(MODELS)
trees = []
for name in snakemake.params.models:
    with torch.device("meta"), uninitialised():
        model = named_architecture(catalogue[name]).build()
    trees.append({"model": name, "label": catalogue[name].label, "tree": tree(model)})
with replacing(snakemake.output.trees) as path:
    path.write_text(json.dumps(trees, indent=1), encoding="utf-8")
