from pathlib import Path

from modelbudget.common.files import write_json
from modelbudget.common.run_metadata import measuring, provenance
from modelbudget.plan.job_setup import start_log

start_log(snakemake)
found = provenance() | {"models": measuring(Path("results/logs"), snakemake.params.shards)}
write_json(snakemake.output.provenance, found, indent=2)
