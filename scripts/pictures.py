from pathlib import Path

from modelbudget.charts.files import draw, load
from modelbudget.files import replacing_folder
from modelbudget.jobs import give_way, start_log

start_log(snakemake)
give_way()
with replacing_folder(snakemake.output.pictures) as folder:
    draw(load(Path(snakemake.input.charts)), folder)
