"""Shards of a model as FSDP2 makes them (torch's `fully_shard`), on meta.

One group for each layer, whose parameters are freed after its forward pass (`zero: 3`) or after its
backward pass (`zero: 2`), and one for all other parameters. Torch decides about every allocation;
collectives move nothing.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.layer import Layer


def shard(model: nn.Module, run: RunConfig, mesh: DeviceMesh) -> None:
    """Distribute the parameters of a model over all data-parallel devices."""
    dtype = getattr(torch, run.dtype)
    reduced = torch.float32 if run.reduce_dtype == "float32" else dtype
    frees = None if run.zero == 3 else False
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
    for module in list(model.modules()):
        if isinstance(module, Layer):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=frees)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=frees)
