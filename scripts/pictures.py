from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

from pathlib import Path

from modelbudget.common.files import replacing
from modelbudget.report.charts.chart_files import draw
from modelbudget.report.page_results import Results

results = Results.read(Path("results"), snakemake.input)
charts = {sweep.name: sweep.charts() for sweep in (*results.sweeps, *results.predicted)}
for pictures in snakemake.output.pictures:
    with replacing(pictures) as folder:
        folder.mkdir()
        draw(charts[Path(pictures).parent.name], folder)
