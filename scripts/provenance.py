import json

from modelbudget.files import replacing
from modelbudget.jobs import start_log
from modelbudget.provenance import provenance

start_log(snakemake)
with replacing(snakemake.output.provenance) as path:
    path.write_text(json.dumps(provenance(), indent=2), encoding="utf-8")
