"""Training steps of one data rank under FSDP2 (torch's `fully_shard`), on meta.

One group for each layer, whose parameters are freed after its forward pass, and one for all other
parameters. Torch decides about every allocation; collectives move nothing.
"""

import warnings
from collections.abc import Set

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import rank
from modelbudget.measure.arrange import arrange
from modelbudget.measure.build import build
from modelbudget.measure.count import Count, count
from modelbudget.measure.parallel.private import fake_process_group, fsdp_on_meta
from modelbudget.measure.parallel.trace import ShardedTrace
from modelbudget.measure.train import Values, by_component, train
from modelbudget.modules.initialise import uninitialised
from modelbudget.modules.layer import Layer
from modelbudget.sweep.quantities import OF_TRAINING


def of_rank(
    architecture: Architecture, run: RunConfig, quantities: Set[str]
) -> tuple[dict[str, Count], Values]:
    """Return counts of the whole model, and bytes by component and peaks of the run's data rank."""
    with fake_process_group(rank(run), run.data_parallel), fsdp_on_meta():
        with uninitialised():
            model = build(architecture, "meta", "float32" if run.master_weights else run.dtype)
        arrange(model, run)
        counts = count(model)
        shard(model, run)
        values = traced(model, run, quantities)
    return counts, values | {"parameters": {name: c.parameters for name, c in counts.items()}}


def shard(model: nn.Module, run: RunConfig) -> None:
    """Distribute the parameters of a model over all ranks of the process group."""
    mesh = init_device_mesh("cpu", (run.data_parallel,))
    dtype = getattr(torch, run.dtype)
    reduced = torch.float32 if run.reduce_dtype == "float32" else dtype
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
    for module in list(model.modules()):
        if isinstance(module, Layer):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def traced(model: nn.Module, run: RunConfig, quantities: Set[str]) -> Values:
    """Trace two training steps of a model that is sharded, and the bytes of its parameters.

    Master weights are the shards themselves, so that the optimizer has no copies of them.
    """
    run = run.model_copy(update={"master_weights": False})
    trace = ShardedTrace(model)
    values: Values = {"parameter_bytes": by_component(model, trace, lambda p: [p])}
    if quantities & OF_TRAINING:
        with warnings.catch_warnings():
            # Logits are a view of a matrix product's result, which nothing changes in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")
            values |= train(model, run, quantities, trace)
    return values
