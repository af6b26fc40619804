import json
from pathlib import Path

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl

from modelbudget.common.files import replacing_folder
from modelbudget.report.charts.chart_files import draw
from modelbudget.report.charts.headline import headline
from modelbudget.report.page_results import SweepResult, headline_model, ordered

sweeps = [
    SweepResult(
        summary=json.loads(Path(summary).read_text(encoding="utf-8")),
        points=pl.read_parquet(points),
        comparison=pl.read_parquet(comparison),
        charts={},
    )
    for summary, points, comparison in zip(
        snakemake.input.summaries, snakemake.input.points, snakemake.input.comparisons, strict=True
    )
]
chosen = headline_model(ordered(sweeps))
with replacing_folder(snakemake.output.headline) as folder:
    draw({"headline": headline(chosen[1]).to_dict()} if chosen else {}, folder)
