from modelbudget.workflow.job_setup import start_log

start_log(snakemake)

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import write_json
from modelbudget.common.paths import MODELS
from modelbudget.common.spreadsheet import write_table
from modelbudget.compare.gpt2_ledger import ledger
from modelbudget.compare.untied_head import surgery
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.rank import trace_step_of_rank
from modelbudget.measurement.trace.step_trace import trace_step
from modelbudget.sweeps.derive import named_architecture

TRAINED = "llama-3-8b"
SIZES = SMALLEST, *_ = "gpt-2-124m", "gpt-2-355m", "gpt-2-774m", "gpt-2-1558m"


def write_step(traced: dict, run: RunConfig, step: str, allocations: str) -> None:
    about = {"model": TRAINED, "label": catalogue[TRAINED].label, "run": run.model_dump()}
    write_table(allocations, pl.DataFrame(traced.pop("allocations"), infer_schema_length=None))
    write_json(step, about | traced, indent=1)


catalogue, output = Catalogue(MODELS), snakemake.output
models = {catalogue[name].label: named_architecture(catalogue[name]) for name in SIZES}
write_table(output.ledger, pl.concat([ledger(label, a, "meta") for label, a in models.items()]))
smallest = named_architecture(catalogue[SMALLEST])
write_table(output.surgery, surgery(smallest))
trained = named_architecture(catalogue[TRAINED])
run = RunConfig(**snakemake.params.run)
write_step(trace_step(build(trained, "meta", run.dtype), run), run, output.step, output.allocations)
shared = RunConfig(**snakemake.params.shared)
write_step(trace_step_of_rank(trained, shared), shared, output.shared, output.shared_allocations)
