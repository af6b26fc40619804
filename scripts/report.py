import logging
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write, write_json
from modelbudget.common.paths import MODELS
from modelbudget.plan.job_setup import start_log
from modelbudget.report.assets import Assets
from modelbudget.report.page import render
from modelbudget.report.page_results import Results
from modelbudget.report.verdict import verdict_file

start_log(snakemake)
results = Results.read(Path("results"), snakemake.input.results, snakemake.params.on_request)
static = Assets(results.parts["assets/vega.js"], results.parts.get("assets/calculator.json"))
write(snakemake.output.html, render(results, Catalogue(MODELS), static))
found = verdict_file(results)
logging.info("verdict: %s", found["line"])
write_json(snakemake.output.verdict, found)
