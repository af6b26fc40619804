from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture
from modelbudget.files import replacing
from modelbudget.huggingface.surgery import surgery
from modelbudget.jobs import start_log
from modelbudget.workflow import MODELS

start_log(snakemake)
gpt2 = named_architecture(Catalogue(MODELS)["gpt-2-124m"])
with replacing(snakemake.output.surgery) as path:
    surgery(gpt2).write_parquet(path)
