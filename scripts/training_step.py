import json

from modelbudget.plan.job_setup import give_way, start_log

start_log(snakemake)
give_way()

import polars as pl

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.models import Catalogue
from modelbudget.common.files import replacing
from modelbudget.common.paths import MODELS
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel.step_trace import trace_step_of_rank
from modelbudget.measurement.step_trace import trace_step
from modelbudget.sweeps.derive import named_architecture


def write(traced: dict, run: RunConfig, step: str, allocations: str) -> None:
    about = {"model": snakemake.params.model, "label": base.label, "run": run.model_dump()}
    with replacing(allocations) as path:
        pl.DataFrame(traced.pop("allocations"), infer_schema_length=None).write_parquet(path)
    with replacing(step) as path:
        path.write_text(json.dumps(about | traced, indent=1), encoding="utf-8")


base = Catalogue(MODELS)[snakemake.params.model]
architecture, output = named_architecture(base), snakemake.output
run = RunConfig(**snakemake.params.run)
write(trace_step(build(architecture, "meta", run.dtype), run), run, output.step, output.allocations)
shared = RunConfig(**snakemake.params.shared)
write(trace_step_of_rank(architecture, shared), shared, output.shared, output.shared_allocations)
