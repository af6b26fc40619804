import json
import logging
from pathlib import Path

import polars as pl

from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.compare.classes import values_of_classes
from modelbudget.plan.job_setup import start_log
from modelbudget.report.assets import Assets
from modelbudget.report.charts.files import load
from modelbudget.report.page import render
from modelbudget.report.results import PredictedResult, Results, StepTrace, SweepResult
from modelbudget.report.verdict import verdict_file

start_log(snakemake)
zoos = {Path(zoo).parent: pl.read_parquet(zoo) for zoo in snakemake.input.zoos}
traces = {Path(path).parent: pl.read_parquet(path) for path in snakemake.input.traces}
counts = {Path(path).parent: pl.read_parquet(path) for path in snakemake.input.counts}
# The table of all published models has the counts of their classes.
counts = {folder: table for folder, table in counts.items() if folder not in zoos}
fits = {Path(fit).parent: pl.read_parquet(fit) for fit in snakemake.input.fits}
frontiers = {Path(path).parent: pl.read_parquet(path) for path in snakemake.input.frontiers}
near = {Path(path).parent: pl.read_parquet(path) for path in snakemake.input.published}
layouts = {Path(path).parent: pl.read_parquet(path) for path in snakemake.input.layouts}
sweeps = [
    SweepResult(
        summary=json.loads(Path(summary).read_text(encoding="utf-8")),
        points=pl.read_parquet(points),
        comparison=pl.read_parquet(comparison),
        charts=load(Path(charts)),
        zoo=zoos.get(Path(summary).parent),
        fit=fits.get(Path(summary).parent),
        classes=values_of_classes(
            traces.get(Path(summary).parent), counts.get(Path(summary).parent)
        ),
        layouts=layouts.get(Path(summary).parent),
        frontier=frontiers.get(Path(summary).parent),
        published=near.get(Path(summary).parent),
    )
    for summary, points, comparison, charts in zip(
        snakemake.input.summaries,
        snakemake.input.points,
        snakemake.input.comparisons,
        snakemake.input.charts,
        strict=True,
    )
]
results = Results(
    sweeps,
    ledger=pl.read_parquet(snakemake.input.ledger),
    surgery=pl.read_parquet(snakemake.input.surgery),
    printed=json.loads(Path(snakemake.input.modules).read_text(encoding="utf-8")),
    walkthroughs=json.loads(Path(snakemake.input.walkthroughs).read_text(encoding="utf-8")),
    trees=json.loads(Path(snakemake.input.trees).read_text(encoding="utf-8")),
    swept=json.loads(Path(snakemake.input.swept).read_text(encoding="utf-8")),
    provenance=json.loads(Path(snakemake.input.provenance).read_text(encoding="utf-8")),
    on_request=snakemake.params.on_request,
    step=StepTrace.read(snakemake.input.step, snakemake.input.allocations),
    shared_step=StepTrace.read(snakemake.input.shared_step, snakemake.input.shared_allocations),
    predicted=[
        PredictedResult(json.loads(Path(summary).read_text(encoding="utf-8")), load(Path(charts)))
        for summary, charts in zip(
            snakemake.input.predicted, snakemake.input.predicted_charts, strict=True
        )
    ],
)
static = Assets(
    json.loads(Path(snakemake.input.calculator).read_text(encoding="utf-8")),
    Path(snakemake.input.vega).read_text(encoding="utf-8"),
)
with replacing(snakemake.output.html) as path:
    path.write_text(render(results, Catalogue(MODELS), static), encoding="utf-8")
found = verdict_file(results)
logging.info("verdict: %s", found["line"])
with replacing(snakemake.output.verdict) as path:
    path.write_text(json.dumps(found))
