"""A model divided among devices that compute it together, on meta.

Torch's own `parallelize_module` divides our modules: matrices of query, key, value, gate and up by
their outputs, those of output and down by their inputs, embedding and head by the vocabulary, of
which the loss reads a part too. What no device can divide is on each: norms, positions, biases of
output and down, and keys and values of a single head. A mixture of experts is left as it is: each
device has a part of the length, and routes its tokens. All devices hold the same number of bytes;
collectives move nothing.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.embedding import Embedding
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.layer import Layer
from modelbudget.modules.lm_head import LMHead
from modelbudget.modules.pipeline_stage import Received


def divide(model: DecoderModel, run: RunConfig, mesh: DeviceMesh) -> None:
    """Divide a model, or a stage of one, among the devices that compute it together."""
    states = Shard(1) if run.sequence_parallel else Replicate()
    for layer in model.layer:
        _divide_layer(cast(Layer, layer), mesh, states)
    parallelize_module(model, mesh, _norms(model, "norm", states))
    if isinstance(model.embedding, Embedding):
        _divide_embedding(model, mesh, states)
    elif run.sequence_parallel:
        cast(Received, model.embedding).parts = mesh.size()
    if isinstance(model.head, LMHead):
        _divide_head(model, mesh, states)


def _divide_embedding(model: DecoderModel, mesh: DeviceMesh, states: Placement) -> None:
    # Positions are added to the states of all tokens.
    adds = model.embedding.kind in ("learned", "sinusoidal")
    plan: dict[str, Any] = {
        "embedding.token": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Replicate() if adds else states
        ),
        "embedding": PrepareModuleOutput(
            output_layouts=Replicate() if adds else states, desired_output_layouts=states
        ),
    }
    parallelize_module(model, mesh, plan)


def _norms(module: Any, name: str, states: Placement) -> dict[str, Any]:
    """Return how norms are divided: over the length, where the states are."""
    if states.is_replicate():
        return {}
    return {f"{name}.{one}": SequenceParallel(use_local_output=True) for one in module.norm}


def _divide_layer(layer: Layer, mesh: DeviceMesh, states: Placement) -> None:
    attention: Any = layer.attention
    columns = ["attention.query", "attention.query_key_value", "attention.gate"]
    columns += ["mlp.gate", "mlp.up", "mlp.gate_up"]
    _divide_packed(layer, mesh.size())
    if attention.n_kv_head > 1:
        columns += ["attention.key", "attention.value"]
        attention.n_kv_head //= mesh.size()
    else:
        for projection in (attention.key, attention.value):
            _compute_everywhere(projection, mesh)
    attention.n_head //= mesh.size()
    rows, whole = RowwiseParallel(output_layouts=states), Replicate()
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns}
    plan |= {"attention.output": rows, "mlp.down": rows}
    plan["attention"] = PrepareModuleInput(
        input_layouts=(states, None, None), desired_input_layouts=(whole, None, None)
    )
    plan["mlp"] = PrepareModuleInput(input_layouts=states, desired_input_layouts=whole)
    has = {name for name, module in layer.named_modules() if module is not None}
    plan = {name: one for name, one in plan.items() if name in has}
    parallelize_module(layer, mesh, plan | _norms(layer, "norm", states))


def _divide_packed(layer: Layer, devices: int) -> None:
    """Order the rows of packed matrices so that each device has a part of each."""
    attention, mlp = cast(Any, layer.attention), getattr(layer, "mlp", None)
    if attention.query_key_value is not None:
        _group(attention.query_key_value, attention.widths, devices)
        attention.widths = [width // devices for width in attention.widths]
    if isinstance(mlp, MLP) and mlp.gate_up is not None:
        _group(mlp.gate_up, [mlp.gate_up.out_features // 2] * 2, devices)


def _group(packed: nn.Linear, widths: list[int], devices: int) -> None:
    """Order the rows of several matrices, of `widths` rows, by device, as Megatron-LM does."""
    for name, parameter in packed.named_parameters(recurse=False):
        parts = [part.chunk(devices) for part in parameter.detach().split(widths)]
        rows = torch.cat([rows for of_device in zip(*parts, strict=True) for rows in of_device])
        packed.register_parameter(name, nn.Parameter(rows))


def _compute_everywhere(projection: nn.Module, mesh: DeviceMesh) -> None:
    """Leave a projection whole on each device, whose gradients are summed over all of them."""

    def leave(_, y, mesh):
        return y.to_local(grad_placements=[Partial()])

    distribute_module(projection, mesh, output_fn=leave)


def _divide_head(model: DecoderModel, mesh: DeviceMesh, states: Placement) -> None:
    """Divide the rows of the head; parallelize_module unties it, which is undone here."""

    def divide_rows(_, head: Any, mesh):
        for name, parameter in head.named_parameters(recurse=False):
            rows = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
            head.register_parameter(name, nn.Parameter(rows))
        if head.tied:
            head.weight = model.embedding.token.weight

    def read(_, inputs, mesh) -> Any:
        (x,) = inputs
        x = DTensor.from_local(x, mesh, [states], run_check=False)
        return (x.redistribute(placements=[Replicate()]),)

    distribute_module(model.head, mesh, divide_rows, read)
