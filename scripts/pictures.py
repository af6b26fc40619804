from pathlib import Path

from modelbudget.charts.files import draw, load
from modelbudget.files import replacing_folder
from modelbudget.jobs import start_log

start_log(snakemake)
with replacing_folder(snakemake.output.pictures) as folder:
    draw(load(Path(snakemake.input.charts)), folder)
