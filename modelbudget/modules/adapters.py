"""Adapters around linear layers, with the operations of PEFT's, and parts that are trained."""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.architecture.adapter_methods import (
    EXPERTS,
    OF_MODEL,
    ROUTER,
    Method,
    adapter_dtype_of,
    method_of,
    settings_of,
    targets_stack,
    why_not_of_experts,
    why_not_of_model,
    why_not_over_stored,
    why_not_run,
    why_not_run_of_experts,
)  # fmt: skip
from modelbudget.architecture.run_adapter import (
    NAMES_OF_CLASSES,
    copies,
    is_partial,
    is_target,
    trains,
)
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import component_of
from modelbudget.modules import adapter_products
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.embedding import Embedding
from modelbudget.modules.expert_changes import StackChange
from modelbudget.modules.feed_forward.moe import MoE
from modelbudget.modules.pipeline_stage import Received
from modelbudget.modules.weight_formats import Stored

RATE = 0.1
CONV1D = "Conv1D"
"""The linear layer of GPT-2 in transformers, whose matrix is (d_in, d_out)."""
HALF = (torch.bfloat16, torch.float16)


class Adapted(nn.Module):
    """A frozen linear layer, stored in its dtype or quantised, and the tensors of an adapter.

    The parameters of the base are its own, so that components keep their names.
    """

    weight: Any

    def __init__(self, base: Any, run: RunConfig, method: Method, values: dict):
        super().__init__()
        for name, parameter in vars(base)["_parameters"].items():  # a bias that is none, too
            self.register_parameter(name, parameter)
        for name, part in base.named_children():  # the frozen original of a copy
            self.add_module(name, part)
        # By its own parameters, which FSDP2 replaces.
        is_plain = type(base).forward is nn.Linear.forward
        self.of_base: Any = self._linear if is_plain else base.forward
        self.in_features, self.out_features = values["d_in"], values["d_out"]
        self.is_feedforward = bool(values["feedforward"])
        self.is_stored = isinstance(base, Stored)
        if self.is_stored:  # which is among its parameters, under a number
            vars(self)["weight"] = base.weight
        self.is_cloned = self.is_stored and run.weights.startswith("bnb-4bit")
        self.stored_matrix: Any = getattr(base, "dequantised", None)
        self.shared: dict[str, nn.Parameter] = {}
        device = next(base.parameters()).device
        self.dtype = dtype_of(run)
        for name in method.tensors:
            tensor = torch.empty(method.shape(name, values), dtype=self.dtype, device=device)
            self.register_parameter(name, nn.Parameter(tensor, name not in method.frozen))
        self.lora_dropout: Any = nn.Dropout(RATE * run.adapter_dropout)
        for name in method.indices:
            places = torch.empty(method.shape(name, values), dtype=torch.int64, device=device)
            self.register_buffer(name, places, persistent=False)
        products = method.forward and getattr(adapter_products, method.forward)
        self.compute: Any = partial(products, self) if products else self.of_base

    def forward(self, x):
        return self.compute(x)

    def _linear(self, x):
        return F.linear(x, self.weight, self._parameters["bias"])

    def result(self, x):
        """Return the result of the base, of which PEFT copies that of some formats."""
        result = self.of_base(x)
        return result.clone() if self.is_cloned else result


def dtype_of(run: RunConfig) -> torch.dtype:
    return getattr(torch, adapter_dtype_of(run))


def adapt(model: nn.Module, run: RunConfig) -> None:
    """Freeze what a run does not train, and add its adapters, once.

    Raises ValueError if no layer is a target, or what is trained is no part of the model.
    """
    if not is_partial(run) or getattr(model, "is_adapted", False):
        return
    vars(model)["is_adapted"] = True
    for path, parameter in model.named_parameters():
        owner, _, name = path.rpartition(".")
        component = component_of(path)
        is_trained = parameter.requires_grad  # not a bias that selects experts
        is_trained &= trains(run, component, layer_of(path), name == "bias")
        is_stored = isinstance(model.get_submodule(owner), Stored)
        if is_stored and (is_trained or copies(run, component)):
            setting = "trained" if is_trained else "modules_to_save"
            raise ValueError(f"{setting} = {component}: it is quantised")
        parameter.requires_grad_(is_trained)
    _copy(model, run)
    if run.input_gradient:
        _require_gradient(model.get_submodule("embedding"))
    if run.prepare_for_kbit_training:
        cast_to_float32(model)
    if why := why_not_run(run):
        vars(model)["forward"] = partial(_refuse, why)
    if run.adapter in OF_MODEL:
        _adapt_model(model, run)
    elif run.adapter != "none":
        _adapt_layers(model, run)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"trained = {run.trained!r}: no part of that name")


def cast_to_float32(model: nn.Module) -> None:
    """Cast all parameters of 16 bits but quantised ones, as `prepare_model_for_kbit_training`."""
    for path, parameter in model.named_parameters():
        if parameter.dtype in HALF and not path.rpartition(".")[2].isdecimal():
            parameter.data = parameter.data.float()


def _require_gradient(embedding: Any) -> None:
    """Let the backward pass go on to what the token embedding returns, as a leaf."""
    if isinstance(embedding, Embedding):  # which scales it first
        embedding.requires_gradient = True
    elif not isinstance(embedding, Received):  # states of another stage require one anyhow
        embedding.get_submodule("token").register_forward_hook(_as_leaf)


def _as_leaf(part: nn.Module, tokens: Any, x: torch.Tensor) -> None:
    if torch.is_grad_enabled():
        x.requires_grad_(True)


def layer_of(path: str) -> int | None:
    """Return the number of the layer of a path: of layer.3.mlp.up.weight 3, of mtp.0 none."""
    number = re.search(r"(?:^|\.)layer\.(\d+)", path)
    return int(number[1]) if number else None


def _copy(model: nn.Module, run: RunConfig) -> None:
    """Train a copy of some parameters, next to which the frozen originals stay.

    A tied head has a copy of its own, or reads the original.
    """
    head: Any = getattr(model, "head", None)
    for path, parameter in list(model.named_parameters()):
        if copies(run, component_of(path)):
            parameter.requires_grad_(True)
            owner, _, name = path.rpartition(".")
            original = nn.Parameter(parameter.detach().clone(), requires_grad=False)
            part = model.get_submodule(owner)
            if not hasattr(part, "original"):
                part.add_module("original", nn.Module())
            part.get_submodule("original").register_parameter(name, original)
            if getattr(head, "tied", False) and head.weight is parameter:
                head.weight = original
    if getattr(head, "tied", False) and copies(run, "head"):
        head.weight = nn.Parameter(head.weight.detach().clone())


def _adapt_model(model: nn.Module, run: RunConfig) -> None:
    method = method_of(run.adapter)
    decoder: Any = model
    if not isinstance(model, DecoderModel):
        raise ValueError(why_not_of_model(run))
    n_layer, d_emb = len(decoder.layer), decoder.embedding.token.weight.shape[1]
    projection = decoder.embedding.projection
    d_model = d_emb if projection is None else _widths(projection)[1]
    attention: Any = getattr(decoder.layer[0], "attention", None)
    width = _widths(attention.key)[1] if hasattr(attention, "key") else 0
    if not width and run.adapter == "prefix":
        raise ValueError("adapter: prefix: layers without keys")
    values = settings_of(run) | {"d_model": d_model, "n_layer": n_layer}
    values |= {"n_kv_head": width, "d_head": 1}
    values["d_emb"] = 0 if projection is None else d_emb
    if why := method.why_not(values):
        raise ValueError(f"adapter: {run.adapter}: {why}")
    device = next(model.parameters()).device
    model.add_module("adapter", adapter := nn.Module())
    for name in method.tensors:
        tensor = torch.empty(method.shape(name, values), dtype=torch.float32, device=device)
        adapter.register_parameter(name, nn.Parameter(tensor))


def _adapt_layers(model: nn.Module, run: RunConfig) -> None:
    method = method_of(run.adapter)
    has_experts = any(isinstance(part, MoE) for part in model.modules())

    def takes(path: str, part: nn.Module) -> bool:
        if isinstance(part, Stored) and (component_of(path) == "head" or len(part.shape) > 2):
            return False  # PEFT leaves out heads, and has stacks of experts in another way
        is_linear = isinstance(part, nn.Linear | Stored)
        return is_linear and is_target(run, path, layer_of(path), has_experts)

    def has_stack(path: str, part: nn.Module) -> bool:
        is_late = (layer_of(path) or 0) >= run.trained_from_layer
        is_target = targets_stack(run, EXPERTS) or targets_stack(run, ROUTER)
        return isinstance(part, MoE) and is_late and is_target

    layers: dict[str, Any] = {p: part for p, part in model.named_modules() if takes(p, part)}
    stacks: dict[str, Any] = {p: part for p, part in model.named_modules() if has_stack(p, part)}
    if not stacks:
        refuse_none(layers, run)
    adapt_layers(model, run, layers)
    for moe in stacks.values():
        if why := why_not_of_experts(run):
            raise ValueError(why)
        if method.of_experts:
            _adapt_stacks(moe, run)


def refuse_none(layers: Collection[str], run: RunConfig) -> None:
    """Raise ValueError if no layer is a target."""
    if not layers:
        raise ValueError(f"adapter_targets = {run.adapter_targets!r}: no linear layer of that name")


def adapt_layers(model: nn.Module, run: RunConfig, layers: Mapping[str, Any]) -> None:
    """Add the adapter of a run to linear layers of a model, which are by path.

    Raises ValueError where a method does not take the widths of a layer.
    """
    method = method_of(run.adapter)
    widths = {path: _widths(part) for path, part in layers.items()}
    values = settings_of(run) | {
        "most_in": max((d_in for d_in, _ in widths.values()), default=0),
        "most_out": max((d_out for _, d_out in widths.values()), default=0),
    }
    adapted = []
    is_over_stored = any(isinstance(part, Stored) for part in layers.values())
    if is_over_stored and (why := why_not_over_stored(run)):
        vars(model)["forward"] = partial(_refuse, why)
    for path, part in layers.items():
        d_in, d_out = widths[path]
        of_layer = {"d_in": d_in, "d_out": d_out}
        name = path.rpartition(".")[2]
        of_layer["feedforward"] = int(NAMES_OF_CLASSES.get(name, name) == "down")
        if why := method.why_not(values | of_layer):
            raise ValueError(f"adapter: {run.adapter}: {why}")
        adapted.append(Adapted(part, run, method, values | of_layer))
        model.set_submodule(path, adapted[-1])
    device = next(model.parameters()).device
    for name in method.shared:
        tensor = torch.empty(method.shape(name, values), dtype=dtype_of(run), device=device)
        model.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        for adapter in adapted:
            adapter.shared[name] = model.get_parameter(name)


def _widths(part: Any) -> tuple[int, int]:
    if type(part).__name__ == CONV1D:
        return part.weight.shape
    d_out, d_in = part.weight.shape if isinstance(part, nn.Linear) else part.shape
    return d_in, d_out


def _refuse(why: str, *_: Any) -> None:
    raise ValueError(why)


def _adapt_stacks(moe: Any, run: RunConfig) -> None:
    """Add what PEFT adds to stacked experts and their router: gate and up are one stack there."""
    up, n_up = (moe.up, 1) if moe.gate_up is None else (moe.gate_up, 2)
    for target, part, parts in (
        (ROUTER, moe.router, 1), (EXPERTS, up, n_up), (EXPERTS, moe.down, 1)
    ):  # fmt: skip
        if not targets_stack(run, target):
            continue
        is_stored = isinstance(part, Stored)
        *stack, d_out, d_in = part.shape if is_stored else part.weight.shape
        if why := why_not_run_of_experts(run, stack, is_stored):
            vars(moe)["forward"] = partial(_refuse, why)
        n = (stack[0] if stack else 1) * parts * run.adapter_rank
        device = moe.router.weight.device
        down, up = (
            nn.Parameter(torch.empty(shape, dtype=dtype_of(run), device=device))
            for shape in ((n, d_in), (d_out, n))
        )
        part.register_parameter("lora_A", down)
        part.register_parameter("lora_B", up)
        part.change = None if is_stored else StackChange(part, down, up)
