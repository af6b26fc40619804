"""A model divided among devices that compute it together, on meta.

Torch's own `parallelize_module` divides our modules: matrices of query, key, value, gate and up by
their outputs, those of output and down by their inputs, embedding and head by the vocabulary, of
which the loss reads a part too. What no device can divide is on each: norms, positions, biases of
output and down, and keys and values of a single head; of fewer heads than devices, each has one.
Norms of heads see those of a device, as torchtitan's `SequenceParallel(sequence_dim=2)`. A mixture
of experts is left as it is where each device has a part of the length, and routes its tokens; else
each expert is divided by its hidden channels. All devices hold the same number of bytes;
collectives move nothing.
"""

from collections.abc import Iterator
from functools import partial
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
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.parallel.megatron_products import compute_as_megatron
from modelbudget.modules import megatron_linear
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.embedding import Embedding
from modelbudget.modules.feed_forward.mlp import MLP, XIELU
from modelbudget.modules.feed_forward.moe import MoE
from modelbudget.modules.layer import Layer
from modelbudget.modules.lm_head import LMHead
from modelbudget.modules.mixers.attention import SeparateNorm
from modelbudget.modules.mixers.mla import MLA
from modelbudget.modules.pipeline_stage import Received


def divide(model: DecoderModel, run: RunConfig, mesh: DeviceMesh) -> None:
    """Divide a model, or a stage of one, among the devices that compute it together."""
    states = Shard(1) if run.sequence_parallel else Replicate()
    again = run.sequence_parallel and run.gathered_states == "again"
    for layer in model.layer:
        _divide_layer(cast(Layer, layer), mesh, states, again)
    parallelize_module(model, mesh, _norms(model, "norm", states))
    if isinstance(model.embedding, Embedding):
        _divide_embedding(model, mesh, states)
        _divide_biases(model.embedding, mesh, states)
        if run.embedding_gradient == "own_rows":
            _embed_own_rows(model.embedding.token, mesh)
    elif run.sequence_parallel:
        cast(Received, model.embedding).parts = mesh.size()
    if isinstance(model.head, LMHead):
        _divide_head(model, mesh, states, again)
    if again or megatron_linear.fuses(run):
        for module in megatron_linear.products(model):
            compute_as_megatron(module, run, mesh, again)


def _whole(part: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """Return the tensor of all devices of which this one has a part, a term or a copy."""
    return DTensor.from_local(part, mesh, [placement], run_check=False)


def _divide_embedding(model: DecoderModel, mesh: DeviceMesh, states: Placement) -> None:
    # Positions are added to the states of all tokens.
    adds = model.embedding.encoding in ("learned", "sinusoidal")
    plan: dict[str, Any] = {
        "embedding.token": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Replicate() if adds else states
        ),
        "embedding": PrepareModuleOutput(
            output_layouts=Replicate() if adds else states, desired_output_layouts=states
        ),
    }
    parallelize_module(model, mesh, plan)
    if model.embedding.projection is not None and not adds:
        _project_here(model.embedding.projection, mesh, states)


def _project_here(projection: Any, mesh: DeviceMesh, states: Placement) -> None:
    """Project a device's own states by a matrix that is on each (vLLM's OPT, `ReplicatedLinear`).

    Of a part of the length the gradient of the matrix is a term.
    """
    distribute_module(projection, mesh)
    gradient = [Partial() if states.is_shard() else states]

    def project(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, projection.weight.to_local(grad_placements=gradient))

    projection.forward = project


def _divide_biases(embedding: Embedding, mesh: DeviceMesh, states: Placement) -> None:
    """Let a device add to the scores of its own heads, for all tokens."""
    n_head, first = embedding.n_head // mesh.size(), mesh.get_local_rank()
    embedding.own_heads = slice(n_head * first, n_head * (first + 1))
    embedding.parts = mesh.size() if states.is_shard() else 1
    if embedding.encoding == "buckets":
        _keep_part(embedding.position, "weight", mesh, 1)


def _keep_part(module: nn.Module, name: str, mesh: DeviceMesh, dim: int = 0) -> None:
    """Keep this device's part of a parameter."""
    part = getattr(module, name).detach().chunk(mesh.size(), dim)[mesh.get_local_rank()]
    module.register_parameter(name, nn.Parameter(part.clone()))


def _embed_own_rows(embedding: Any, mesh: DeviceMesh) -> None:
    """Embed the tokens of which this device has the rows, as Megatron-Core does.

    Core/tensor_parallel/layers.py, `VocabParallelEmbedding`. The others are zeros.
    """

    def forward(tokens):
        tokens, rows = tokens.to_local(), embedding.weight.to_local()
        first = mesh.get_local_rank() * len(rows)
        is_elsewhere = (tokens < first) | (tokens >= first + len(rows))
        row_numbers = (tokens - first).masked_fill_(is_elsewhere, 0)
        states = F.embedding(row_numbers, rows).masked_fill_(is_elsewhere.unsqueeze(-1), 0.0)
        return _whole(states, mesh, Partial())

    embedding.forward = forward


def _norms(module: Any, name: str, states: Placement) -> dict[str, Any]:
    """Return how norms are divided: over the length, where the states are."""
    if states.is_replicate():
        return {}
    return {f"{name}.{norm}": SequenceParallel(use_local_output=True) for norm in module.norm}


def _divide_layer(layer: Layer, mesh: DeviceMesh, states: Placement, again: bool) -> None:
    """Divide a layer; `again`: its parts gather states themselves (`compute_as_megatron`)."""
    rows, whole = RowwiseParallel(output_layouts=states), Replicate()
    plan: dict[str, Any] = {"mla.output": rows, "attention.output": rows, "mlp.down": rows}
    columns = ["mla.query", "mla.query_up", "mla.kv_up"]
    columns += ["attention.query", "attention.query_key_value", "attention.gate"]
    columns += ["mlp.gate", "mlp.up", "mlp.gate_up"]
    _divide_packed(layer, mesh.size())
    if isinstance(getattr(getattr(layer, "mlp", None), "activation", None), XIELU):
        plan["mlp.activation"] = SequenceParallel(sequence_dim=-1, use_local_output=True)
    if hasattr(layer, "mla"):
        mla = cast(MLA, layer.mla)
        mla.n_head //= mesh.size()
        widths = mla.kv_lora_rank, mla.d_rope
        mla.kv_down.register_forward_hook(partial(_sum_key_gradient, mesh, widths))
    if hasattr(layer, "attention"):
        columns += _divide_heads(layer.attention, mesh)
        plan |= {f"attention.{name}": style for name, style in _head_norms(layer.attention, mesh)}
    for part in (getattr(layer, name, None) for name in ("attention", "mlp")):
        inner = getattr(part, "norm", None)
        if not isinstance(inner, nn.Identity | None):
            _normalise_all(inner, mesh)
    if again:
        last = {id(module) for name, module in layer.named_modules() if name in plan}
        for module in megatron_linear.products(layer):
            if id(module) not in last:
                _divide_rows(module, mesh)
    else:
        plan |= {name: ColwiseParallel() for name in columns}
        plan["attention"] = PrepareModuleInput(
            input_layouts=(states, None, None), desired_input_layouts=(whole, None, None)
        )
        plan["mla"] = PrepareModuleInput(  # each device has all of the gradient
            input_layouts=states, desired_input_layouts=whole, use_local_output=True
        )
        plan["mlp"] = PrepareModuleInput(input_layouts=states, desired_input_layouts=whole)
    if isinstance(moe := getattr(layer, "moe", None), MoE) and states.is_replicate():
        plan |= _divide_experts(moe, mesh)
    has = {name for name, module in layer.named_modules() if module is not None}
    plan = {name: style for name, style in plan.items() if name in has}
    parallelize_module(layer, mesh, plan | _norms(layer, "norm", states))


def _divide_experts(moe: MoE, mesh: DeviceMesh) -> dict[str, Any]:
    """Divide each expert by its hidden channels; return how the shared ones are divided.

    Each device routes all tokens; gradients of what the experts read and of their weights are
    summed, and so are their results (transformers, `MoeExpertsParallel`).
    """
    for stack_name, parts in ("gate", 1), ("up", 1), ("gate_up", 2):
        stack = cast(nn.Module, getattr(moe, stack_name, None) or nn.Identity())
        for name, parameter in [*stack.named_parameters()]:
            shares = [part.chunk(mesh.size(), 1) for part in parameter.detach().chunk(parts, 1)]
            divided = torch.cat([share[mesh.get_local_rank()] for share in shares], 1)
            stack.register_parameter(name, nn.Parameter(divided))
    _keep_part(moe.down, "weight", mesh, 2)

    def read(x: torch.Tensor) -> torch.Tensor:
        return _whole(x, mesh, Replicate()).to_local(grad_placements=[Partial()])

    def sum_terms(y: torch.Tensor) -> torch.Tensor:
        return _whole(y, mesh, Partial()).redistribute(placements=[Replicate()]).to_local()

    moe.read, moe.sum_terms = read, sum_terms
    columns = {f"moe.shared.{name}": ColwiseParallel() for name in ("gate", "up", "gate_up")}
    whole = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return columns | {
        "moe.shared": whole,
        "moe.shared.down": RowwiseParallel(output_layouts=Replicate()),
    }


def _divide_heads(attention: Any, mesh: DeviceMesh) -> list[str]:
    """Leave a device its heads, but for matrices: return which of keys and values are divided."""
    n_kv_head = attention.n_kv_head
    attention.n_head //= mesh.size()
    if attention.sinks is not None:
        _keep_part(attention, "sinks", mesh)
    if n_kv_head % mesh.size() == 0:
        attention.n_kv_head //= mesh.size()
        return ["attention.key", "attention.value"]
    for projection in (attention.key, attention.value):
        if n_kv_head > 1:
            _keep_head(projection, mesh, mesh.size() // n_kv_head)
        else:
            _compute_everywhere(projection, mesh)
    attention.n_kv_head = 1
    return []


def _head_norms(attention: Any, mesh: DeviceMesh) -> Iterator[tuple[str, SequenceParallel]]:
    """Yield how norms of heads are divided: a norm of each head has parameters of a device's."""
    for name in ("query_norm", "key_norm"):
        module = getattr(attention, name)
        if attention.qk_norm == "joint":
            _normalise_all(module, mesh)
            continue
        if not isinstance(module, SeparateNorm):
            yield name, SequenceParallel(sequence_dim=2, use_local_output=True)
            continue
        for parameter, _ in [*module.named_parameters(recurse=False)]:
            _keep_part(module, parameter, mesh)


def _normalise_all(norm: nn.Module, mesh: DeviceMesh) -> None:
    """Let a norm read the heads or channels of all devices, and return this one's (vLLM's OLMo 2).

    Each device has the gradient of all heads, and so that of the norm's parameters.
    """

    def redistribute(x: Any, placement: Placement, wanted: Placement) -> torch.Tensor:
        return _whole(x, mesh, placement).redistribute(placements=[wanted]).to_local()

    replicated, divided = Replicate(), Shard(2)
    norm.register_forward_pre_hook(lambda _, inputs: redistribute(inputs[0], divided, replicated))
    norm.register_forward_hook(lambda _, _inputs, y: redistribute(y, replicated, divided))


def _sum_key_gradient(mesh: DeviceMesh, widths: tuple[int, int], _down, _inputs, y: torch.Tensor):
    """Sum the gradient of the rotary key, of which the heads of each device have a term.

    That of the latent is summed where it is read (transformers, `MlaKvAProjParallel`).
    """
    latent, key = y.split(widths, dim=-1)
    key = _whole(key, mesh, Replicate()).to_local(grad_placements=[Partial()])
    return torch.cat((latent, key), dim=-1)


def _divide_packed(layer: Layer, devices: int) -> None:
    """Order the rows of packed matrices so that each device has a part of each."""
    attention = cast(Any, getattr(layer, "attention", None))
    if getattr(attention, "widths", None) is not None:
        packed = attention.query_key_value
        _group(attention.query if packed is None else packed, attention.widths, devices)
        attention.widths = [width // devices for width in attention.widths]
    for mlp in layer.modules():
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


def _keep_head(projection: nn.Linear, mesh: DeviceMesh, copies: int) -> None:
    """Keep the rows of one head of keys or values, of which as many devices have `copies`.

    The gradients of copies are not summed, so that this is for inference.
    """
    n_head = mesh.size() // copies
    for name, parameter in projection.named_parameters(recurse=False):
        rows = parameter.detach().chunk(n_head)[mesh.get_local_rank() // copies]
        projection.register_parameter(name, nn.Parameter(rows.clone()))

    def read(_, inputs):
        return tuple(x.to_local() for x in inputs)

    projection.register_forward_pre_hook(read)


def _divide_rows(module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the rows of the parameters of a linear layer."""
    for name, parameter in module.named_parameters(recurse=False):
        rows = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(rows))


def _divide_head(model: DecoderModel, mesh: DeviceMesh, states: Placement, again: bool) -> None:
    """Divide the rows of the head; parallelize_module unties it, which is undone here.

    It reads the states of all tokens, of a factorised embedding after their projection.
    """

    def divide_rows(_, head: Any, mesh):
        if isinstance(head, LMHead):
            _divide_rows(head, mesh)
            if head.tied:
                head.weight = model.embedding.token.weight

    def read(x: torch.Tensor) -> torch.Tensor:
        return _whole(x, mesh, states).redistribute(placements=[Replicate()])

    def read_states(_, inputs, _mesh) -> Any:
        return (read(*inputs),)

    projection = getattr(model.head, "projection", None)
    if projection is not None:
        _project_here(projection, mesh, states)
        projection.register_forward_hook(lambda _, _inputs, y: read(y))
    reads_states = not again and projection is None
    distribute_module(model.head, mesh, divide_rows, read_states if reads_states else None)


def gather_logits(model: DecoderModel) -> None:
    """Let each device gather the logits of the whole vocabulary, to choose the next token."""

    def gathered(_head, _inputs, logits: DTensor) -> DTensor:
        return logits.redistribute(placements=[Replicate()])

    model.head.register_forward_hook(gathered)
