"""Shards of a model as FSDP2 makes them (torch's `fully_shard`), on meta.

One group for each layer, whose parameters are freed after its forward pass (`zero: 3`) or after its
backward pass (`zero: 2`), and one for all other parameters, or two where the loss is computed in
chunks. Routed experts that devices divide are
a second group of each layer: their shards are on the devices that have the same experts, all others
on all devices (`shard_placement_fn`, with a mesh for each parameter). Torch decides about every
allocation; collectives move nothing.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import has_part_of_experts, replicas
from modelbudget.measurement.parallel.fake_process_group import on_mesh
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.feed_forward.moe import ExpertLinear
from modelbudget.modules.layer import Layer
from modelbudget.modules.weight_formats import WHOLE


def shard(model: nn.Module, run: RunConfig, mesh: DeviceMesh) -> None:
    """Distribute the parameters of a model over all devices that have the same ones."""
    dtype = getattr(torch, run.dtype)
    reduced = torch.float32 if run.reduce_dtype == "float32" else dtype
    shared: dict[str, Any] = {
        "mesh": mesh["data", "context", "expert"]._flatten(),
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced),
        "reshard_after_forward": None if run.zero == 3 else False,
    }
    shared["ignored_params"] = {p for p in model.parameters() if getattr(p, WHOLE, False)}
    place = None
    if has_part_of_experts(run):
        place = on_mesh(mesh["data", "context"]._flatten(), _of_experts(model))
    for module in list(model.modules()):
        if isinstance(module, Layer):
            fully_shard(module, shard_placement_fn=place, **shared)
            if place:
                _average(cast(FSDPModule, module), run)
    if run.loss_chunks > 1:
        _shard_head(cast(DecoderModel, model), shared)
    fully_shard(model, **shared)


def _shard_head(model: DecoderModel, shared: dict[str, Any]) -> None:
    """Make groups outside of the layers of a model whose head is called by itself.

    One of the embedding, and one of final norm and head, which stays gathered from the forward pass
    of the norm; of a tied head, one of all: torchtitan's `apply_fsdp_to_decoder`
    (distributed/fsdp.py).
    """
    norms = dict(model.norm.items())
    before: list[nn.Module] = [model.embedding]
    before += [norm for name, norm in norms.items() if name == "embedding"]
    after = [*(norm for name, norm in norms.items() if name == "final"), model.head]
    if model.head.tied:
        after = before + after
    else:
        fully_shard(before, **shared)
    kept: dict[str, Any] = shared | {"reshard_after_forward": False}
    fully_shard(after, **kept)


def _of_experts(model: nn.Module) -> list[nn.Parameter]:
    stacks = [module for module in model.modules() if isinstance(module, ExpertLinear)]
    return [parameter for stack in stacks for parameter in stack.parameters()]


def _average(layer: FSDPModule, run: RunConfig) -> None:
    """Divide gradients by the number of all devices, whose tokens the experts compute, too."""
    layer.set_gradient_divide_factor(replicas(run))
    if run.data_parallel * run.context_parallel > 1:
        # A sum that is divided in place: gloo has no other.
        layer.set_force_sum_reduction_for_comms(True)
