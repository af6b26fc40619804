from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

from modelbudget.common.files import replacing
from modelbudget.report.vega import vega

with replacing(snakemake.output.vega) as path:
    path.write_text(vega(), encoding="utf-8")
