import json
from pathlib import Path

from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.provenance import measuring, provenance

start_log(snakemake)
found = provenance() | {"models": measuring(Path("results"), snakemake.params.sweeps)}
with replacing(snakemake.output.provenance) as path:
    path.write_text(json.dumps(found, indent=2), encoding="utf-8")
