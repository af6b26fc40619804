"""Training steps and inference of one of several devices that divide a model, on meta.

Devices are a mesh of up to five dimensions: stages of a pipeline (`pipeline_schedule.py`), devices
that compute sequences of their own and those that divide the tokens of a sequence (`context.py`),
both of which hold shards of the same part (`fully_shard.py`), those that divide experts
(`expert.py`), and those that compute one part together (`divided_model.py`).
Torch decides about every allocation; collectives, sends and receives move nothing.
"""

import math
import warnings
from collections.abc import Set
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import (
    divides_context,
    has_buckets,
    has_part_of_experts,
    is_divided,
    is_interleaved,
    is_pipelined,
    is_sharded,
    rank,
    replicas,
    stage_index,
)
from modelbudget.measurement.build import build
from modelbudget.measurement.count import Count, by_quantity, count
from modelbudget.measurement.measured import Values
from modelbudget.measurement.parallel import (
    context,
    divided_model,
    expert,
    fully_shard,
    pipeline_schedule,
)
from modelbudget.measurement.parallel.fake_process_group import (
    fake_process_group,
    fsdp_on_meta,
    pipeline_without_votes,
    reduce_on_meta,
    serve_meta,
)
from modelbudget.measurement.parallel.trace_of_rank import ShardedTrace
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.train import Pass, by_component, one_pass, texts, train
from modelbudget.measurement.trace.bytes_at_peak import BUFFERS
from modelbudget.measurement.trace.inference import infer
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.measurement.trace.step_trace import StepTrace, trace_step
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.initialise import uninitialised
from modelbudget.modules.pipeline_stage import stages
from modelbudget.sweeps.quantity_names import OF_INFERENCE, OF_TRAINING


def of_rank(
    architecture: Architecture, run: RunConfig, quantities: Set[str]
) -> tuple[dict[str, Count], Values]:
    """Return counts of the whole model, and bytes by component and peaks of the run's device."""
    replica = stage_index(run) * replicas(run) + rank(run)
    index = replica * run.tensor_parallel
    with fake_process_group(index, world(run)), fsdp_on_meta(), pipeline_without_votes():
        with uninitialised():
            model = build(architecture, "meta", dtype_of_parameters(run))
        counts = count(model)
        mesh = mesh_of(run)
        for name in ("stage", "data"):
            serve_meta(mesh.get_group(name))
        model = distribute(model, run, mesh)
        values = traced(model, architecture, run, quantities, mesh)
    return counts, values | by_quantity(counts, ["parameters"])


def world(run: RunConfig) -> int:
    """Count the devices."""
    return math.prod(_shape(run).values())


def _shape(run: RunConfig) -> dict[str, int]:
    return {
        "stage": run.pipeline_parallel,
        "data": run.data_parallel,
        "context": run.context_parallel,
        "expert": run.expert_parallel,
        "tensor": run.tensor_parallel,
    }


def dtype_of_parameters(run: RunConfig) -> str:
    """Return the dtype of the parameters between two steps: shards are the master weights."""
    return "float32" if is_sharded(run) and run.master_weights else run.dtype


def mesh_of(run: RunConfig) -> DeviceMesh:
    """Return all ranks of the process group as a mesh: those of a stage follow each other."""
    shape = _shape(run)
    return init_device_mesh("cpu", (*shape.values(),), mesh_dim_names=(*shape,))


def distribute(model: nn.Module, run: RunConfig, mesh: DeviceMesh) -> nn.Module:
    """Leave of a model what this rank has: its stages, a share of their matrices, a shard of that.

    Returns the model or its only stage, changed in place; of several stages, a list.
    """
    parts = [cast(DecoderModel, model)]
    if is_pipelined(run):
        n_stage = run.pipeline_parallel * run.virtual_stages
        indices = range(mesh.get_local_rank("stage"), n_stage, run.pipeline_parallel)
        parts = stages(parts[0], indices, n_stage)
    for part in parts:
        is_changed = is_partial(run) or run.weights != "dtype"
        if is_divided(run) or is_sharded(run) or is_changed:
            # What is packed is divided and sharded as one matrix; tables are of a device's tokens.
            arrange(part, context.own_tokens(run))
        if has_part_of_experts(run):
            expert.divide(part, run, mesh["expert"])
        if divides_context(run):
            context.divide(part, run, mesh["context"])
        if is_divided(run):
            divided_model.divide(part, run, mesh["tensor"])
        if is_sharded(run):
            fully_shard.shard(part, run, mesh)
    if not is_interleaved(run):
        return model
    several = nn.ModuleList(parts)
    vars(several)["is_adapted"] = True
    return several


def traced(
    model: nn.Module, a: Architecture, run: RunConfig, quantities: Set[str], mesh: DeviceMesh
) -> Values:
    """Trace two training steps of a distributed model, its inference, and its parameters' bytes.

    Master weights are the shards themselves, so that the optimizer has no copies of them.
    """
    if is_sharded(run):
        run = run.model_copy(update={"master_weights": False})
    run = context.own_tokens(run)
    shards = by_component(model, ShardedTrace(model), lambda p: [p])
    values: Values = {"parameter_bytes": shards}
    arrange(model, run)
    trace = ShardedTrace(model)
    make_pass = None
    if is_pipelined(run):
        make_pass = partial(pipeline_schedule.make_pass, vars(a)["d_model"], mesh["stage"])
    elif has_buckets(run):
        make_pass = partial(_pass_in_buckets, mesh["data"])
    if quantities & OF_TRAINING:
        with ExitStack() as stack:
            if is_divided(run):
                stack.enter_context(loss_parallel())
            # Logits are a view of a matrix product's result, which nothing changes in place.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            values |= train(model, run, quantities, trace, make_pass)
    if of_inference := quantities & OF_INFERENCE:
        divided_model.gather_logits(cast(DecoderModel, model))
        values |= infer(model, run, of_inference, ShardedTrace(model))
    return values


class ShardedStepTrace(ShardedTrace, StepTrace):
    """A trace of what one rank holds that knows the operation of every allocation."""


def trace_step_of_rank(architecture: Architecture, run: RunConfig) -> dict[str, Any]:
    """Trace two training steps of one of the devices that share a model as shards (zero: 2 or 3).

    Returns what `trace_step` does of a whole model.
    """
    with fake_process_group(0, world(run)), fsdp_on_meta(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        model = build(architecture, "meta", dtype_of_parameters(run))
        mesh = mesh_of(run)
        serve_meta(mesh.get_group("stage"))
        distribute(model, run, mesh)
        # Shards are the master weights, so that the optimizer has no copies of them.
        run = run.model_copy(update={"master_weights": False})
        arrange(model, run)
        return trace_step(model, run, ShardedStepTrace)


def _pass_in_buckets(mesh: DeviceMesh, trace: Trace, model: nn.Module, run: RunConfig) -> Pass:
    """Return the pass of one of the data-parallel devices of a mesh.

    The reducer of DistributedDataParallel copies each gradient into a bucket, and back or not.
    """
    is_meta = next(model.parameters()).is_meta
    wrapped = DistributedDataParallel(
        model,
        process_group=mesh.get_group(),
        gradient_as_bucket_view=run.gradient_buckets == "views",
        init_sync=not is_meta,  # it reads values
    )
    if is_meta:
        reduce_on_meta(wrapped, lambda bucket: trace.mark(BUFFERS, [bucket]))
    return partial(one_pass, trace, model, run, *texts(model, run), wrapped=wrapped)
