import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write, write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.run_metadata import measuring, provenance
from modelbudget.report.page import render
from modelbudget.report.page_results import Results, charts_of
from modelbudget.report.vega_script import vega
from modelbudget.report.verdict import verdict_file

catalogue = Catalogue(MODELS)
# The others are forked before this process uses Polars, whose threads a fork does not have.
with ProcessPoolExecutor(snakemake.threads, multiprocessing.get_context("fork")) as others:
    bundled = others.submit(vega)
    results = Results.read(
        Path("results"),
        snakemake.input.results,
        draw=lambda files: others.submit(charts_of, files).result,
    )
    made_by = provenance() | {"models": measuring(Path("results/logs"), snakemake.params.shards)}
    results = results._replace(parts={**results.parts, "provenance.json": made_by})
    calculator = results.parts.get("assets/calculator.json")
    page = render(results, catalogue, calculator, bundled.result)
verdict = verdict_file(results)
write(snakemake.output.html, page)
logging.info("verdict: %s", verdict["line"])
write_json(snakemake.output.verdict, verdict)
write_json(snakemake.output.provenance, made_by, indent=2)
