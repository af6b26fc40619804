"""Training steps of one of several devices that hold shards or shares of a model, on meta.

Devices are a mesh: those of one row compute one model together (`tensor.py`), those of one column
hold its shards (`fsdp.py`). Torch decides about every allocation; collectives move nothing.
"""

import warnings
from collections.abc import Set
from contextlib import ExitStack
from typing import cast

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_divided, is_sharded, rank
from modelbudget.measurement.arrange import arrange
from modelbudget.measurement.build import build
from modelbudget.measurement.count import Count, count
from modelbudget.measurement.parallel import fsdp, tensor
from modelbudget.measurement.parallel.private import fake_process_group, fsdp_on_meta
from modelbudget.measurement.parallel.trace import ShardedTrace
from modelbudget.measurement.train import Values, by_component, train
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.quantities import OF_TRAINING


def of_rank(
    architecture: Architecture, run: RunConfig, quantities: Set[str]
) -> tuple[dict[str, Count], Values]:
    """Return counts of the whole model, and bytes by component and peaks of the run's device."""
    index, world = rank(run) * run.tensor_parallel, run.data_parallel * run.tensor_parallel
    with fake_process_group(index, world), fsdp_on_meta():
        with uninitialised():
            model = build(architecture, "meta", "float32" if run.master_weights else run.dtype)
        arrange(model, run)
        counts = count(model)
        distribute(model, run)
        values = traced(model, run, quantities)
    return counts, values | {"parameters": {name: c.parameters for name, c in counts.items()}}


def distribute(model: nn.Module, run: RunConfig) -> None:
    """Distribute a model over all ranks of the process group, first among those of one row."""
    shape = run.data_parallel, run.tensor_parallel
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    if is_divided(run):
        tensor.divide(cast(DecoderModel, model), run, mesh["tensor"])
    if is_sharded(run):
        fsdp.shard(model, run, mesh["data"])


def traced(model: nn.Module, run: RunConfig, quantities: Set[str]) -> Values:
    """Trace two training steps of a distributed model, and the bytes of its parameters.

    Master weights are the shards themselves, so that the optimizer has no copies of them.
    """
    if is_sharded(run):
        run = run.model_copy(update={"master_weights": False})
    trace = ShardedTrace(model)
    values: Values = {"parameter_bytes": by_component(model, trace, lambda p: [p])}
    if quantities & OF_TRAINING:
        with ExitStack() as stack:
            if is_divided(run):
                stack.enter_context(loss_parallel())
            # Logits are a view of a matrix product's result, which nothing changes in place.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            values |= train(model, run, quantities, trace)
    return values
