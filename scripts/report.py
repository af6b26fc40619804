import logging
from pathlib import Path

from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write, write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.run_metadata import measuring, provenance
from modelbudget.report.page import render, short
from modelbudget.report.page_results import Results
from modelbudget.report.vega_script import bundled_meanwhile
from modelbudget.report.verdict import verdict_file

vega = bundled_meanwhile()
results = Results.read(Path("results"), snakemake.input.results, snakemake.params.on_request)
made_by = provenance() | {"models": measuring(Path("results/logs"), snakemake.params.shards)}
results = results._replace(parts={**results.parts, "provenance.json": made_by})
catalogue, found = Catalogue(MODELS), verdict_file(results)
calculator = results.parts.get("assets/calculator.json")
write(snakemake.output.html, short(render(results, catalogue, calculator, vega)))
logging.info("verdict: %s", found["line"])
write_json(snakemake.output.verdict, found)
write_json(snakemake.output.provenance, made_by, indent=2)
