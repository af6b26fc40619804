from pathlib import Path

from modelbudget.common.files import replacing_folder
from modelbudget.plan.job_setup import give_way, start_log
from modelbudget.report.charts.chart_files import draw, load

start_log(snakemake)
give_way()
for charts, pictures in zip(snakemake.input.charts, snakemake.output.pictures, strict=True):
    with replacing_folder(pictures) as folder:
        draw(load(Path(charts)), folder)
