import json
from pathlib import Path

from modelbudget.common.files import replacing
from modelbudget.common.run_metadata import measuring, provenance
from modelbudget.plan.job_setup import start_log

start_log(snakemake)
found = provenance() | {"models": measuring(Path("results/logs"), snakemake.params.shards)}
with replacing(snakemake.output.provenance) as path:
    path.write_text(json.dumps(found, indent=2), encoding="utf-8")
