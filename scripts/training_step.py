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
from modelbudget.measurement.step_trace import trace_step
from modelbudget.sweeps.derive import named_architecture

catalogue = Catalogue(MODELS)
base, run = catalogue[snakemake.params.model], RunConfig(**snakemake.params.run)
traced = trace_step(build(named_architecture(base), "meta", run.dtype), run)
about = {"model": snakemake.params.model, "label": base.label, "run": run.model_dump()}
with replacing(snakemake.output.allocations) as path:
    pl.DataFrame(traced.pop("allocations"), infer_schema_length=None).write_parquet(path)
with replacing(snakemake.output.step) as path:
    path.write_text(json.dumps(about | traced, indent=1), encoding="utf-8")
