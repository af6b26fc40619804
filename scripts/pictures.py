from pathlib import Path

from modelbudget.common.files import replacing_folder
from modelbudget.plan.job_setup import give_way, start_log
from modelbudget.report.charts.files import draw, load

start_log(snakemake)
give_way()
with replacing_folder(snakemake.output.pictures) as folder:
    draw(load(Path(snakemake.input.charts)), folder)
