import gc
import json
from pathlib import Path

import torch

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand, named_architecture
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.measure.tree import tree
from modelbudget.modules.initialise import uninitialised
from modelbudget.report.inside import chosen
from modelbudget.workflow import MODELS

start_log(snakemake)
gc.freeze()  # looking for garbage among all that is imported takes longer than building a model
catalogue = Catalogue(MODELS)
named = {name: named_architecture(catalogue[name]) for name in snakemake.params.models}
expanded = [expand(Path(sweep), catalogue) for sweep in snakemake.input.sweeps]
swept = chosen({sweep.name: [p.architecture for p in sweep.points] for sweep in expanded})


def built(architecture) -> dict:
    with torch.device("meta"), uninitialised():
        return tree(architecture.build())


trees = [
    {"model": name, "label": catalogue[name].label, "tree": built(architecture)}
    for name, architecture in named.items()
]
with replacing(snakemake.output.trees) as path:
    path.write_text(json.dumps(trees, indent=1), encoding="utf-8")
with replacing(snakemake.output.swept) as path:
    found = {digest: built(architecture) for digest, architecture in swept.items()}
    path.write_text(json.dumps(found), encoding="utf-8")
