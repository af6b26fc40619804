from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

from modelbudget.common.files import write
from modelbudget.report.vega import vega

write(snakemake.output.vega, vega())
