import json
from pathlib import Path

import torch

from modelbudget.catalogue import Catalogue
from modelbudget.expand import expand
from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.modules.initialise import uninitialised
from modelbudget.workflow import MODELS

start_log(snakemake)
catalogue = Catalogue(MODELS)
printed = {}
with torch.device("meta"), uninitialised():
    for sweep in snakemake.input.sweeps:
        for point in expand(Path(sweep), catalogue).points:
            printed[point.architecture.digest()] = repr(point.architecture.build())
with replacing(snakemake.output.modules) as path:
    path.write_text(json.dumps(printed, indent=1), encoding="utf-8")
