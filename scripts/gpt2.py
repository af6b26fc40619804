import json

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.compare.gpt2_ledger import ledger
from modelbudget.compare.untied_head import surgery
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.step_of_rank import trace_step_of_rank
from modelbudget.measurement.trace.step_trace import trace_step
from modelbudget.sweeps.derive import named_architecture

TRAINED = "llama-3-8b"
SIZES = SMALLEST, *_ = "gpt-2-124m", "gpt-2-355m", "gpt-2-774m", "gpt-2-1558m"


def write(traced: dict, run: RunConfig, step: str, allocations: str) -> None:
    about = {"model": TRAINED, "label": catalogue[TRAINED].label, "run": run.model_dump()}
    with replacing(allocations) as path:
        pl.DataFrame(traced.pop("allocations"), infer_schema_length=None).write_parquet(path)
    with replacing(step) as path:
        path.write_text(json.dumps(about | traced, indent=1), encoding="utf-8")


catalogue, output = Catalogue(MODELS), snakemake.output
models = {catalogue[name].label: named_architecture(catalogue[name]) for name in SIZES}
with replacing(output.ledger) as path:
    pl.concat([ledger(label, a, "meta") for label, a in models.items()]).write_parquet(path)
smallest = named_architecture(catalogue[SMALLEST])
with replacing(output.surgery) as path:
    surgery(smallest).write_parquet(path)
trained = named_architecture(catalogue[TRAINED])
run = RunConfig(**snakemake.params.run)
write(trace_step(build(trained, "meta", run.dtype), run), run, output.step, output.allocations)
shared = RunConfig(**snakemake.params.shared)
write(trace_step_of_rank(trained, shared), shared, output.shared, output.shared_allocations)
