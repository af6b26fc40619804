import gc

from modelbudget.workflow.job_setup import start_log

start_log(snakemake)
gc.disable()  # looking for cycles would take a tenth of the time; those of tapes are 200 MB

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.report.calculator_data import calculator
from modelbudget.report.ratios import predicted

catalogue = Catalogue(MODELS)
write_json(snakemake.output.calculator, calculator(catalogue), ensure_ascii=False)
write_json(snakemake.output.readings, predicted(catalogue), ensure_ascii=False)
