"""The optimizer of a run, with or without master weights, of all parameters or of a part."""

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import _device_dtype_check_for_fused

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.optimizers import OptimizerData, optimizer_named, sizes_of
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import rank, replicas
from modelbudget.architecture.terms import component_of
from modelbudget.common.errors import InputError
from modelbudget.measurement.measured import NOT_INSTALLED
from modelbudget.measurement.trace.module_trace import stepping
from modelbudget.modules.megatron_linear import FUSED


class GradientBuffer:
    """One float32 buffer, to which each gradient is added when autograd has accumulated it.

    A parameter's part of it is its attribute `main_grad`, as in Megatron-Core
    (distributed/param_and_grad_buffer.py; distributed_data_parallel.py, `_make_backward_post_hook`)
    without communication. The buffer exists from the start and is kept from step to step. So are
    the tensors without values that autograd gets of products which add to the buffer themselves
    (`megatron_linear.py`): one for each shape. Transformer Engine makes it with the first product.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        shards = [local(parameter) for parameter in parameters]
        sizes = [parameter.numel() for parameter in shards]
        device = parameters[0].device
        self.numbers = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        for parameter, whole, part in zip(
            shards, parameters, self.numbers.split(sizes), strict=True
        ):
            whole.main_grad = part.view_as(parameter)  # pyrefly: ignore[missing-attribute]
            whole.register_post_accumulate_grad_hook(_add)
        by_shape: dict[tuple, torch.Tensor] = {}
        for parameter, whole in zip(shards, parameters, strict=True):
            if hasattr(whole, FUSED):
                key = *parameter.shape, parameter.dtype
                none = by_shape[key] if key in by_shape else torch.zeros_like(parameter)
                by_shape[key] = whole.without_values = none  # pyrefly: ignore[missing-attribute]

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.numbers.zero_()


def _add(parameter) -> None:
    gradient = parameter.grad
    if hasattr(gradient, "redistribute"):
        gradient = gradient.redistribute(placements=parameter.placements)
    parameter.main_grad.add_(local(gradient))
    parameter.grad = None


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this device has of a tensor that several may divide, without a copy."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def gradients(parameter: nn.Parameter) -> list[torch.Tensor]:
    """Return the gradient of a parameter, from the buffer if there is one; empty if it has none."""
    gradient = getattr(parameter, "main_grad", parameter.grad)
    return [] if gradient is None else [gradient]


MODEL = "model"
"""The component of states that are one tensor for all parameters."""


def make_optimizer(model: nn.Module, run: RunConfig) -> "Optimizer | PartOptimizer":
    return PartOptimizer(model, run) if run.zero == 1 else Optimizer(model, run)


class TorchOptimizers:
    """The optimizers of a run, as their libraries have them, over tensors with component names.

    Several where one optimizer leaves some tensors to another. Raises InputError where a library is
    not installed.
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], run: RunConfig):
        whole = optimizer_named(run.optimizer)
        tensors: dict[int, list[torch.Tensor]] = {}
        used: dict[int, OptimizerData] = {}
        for name, tensor in named:
            choices = whole.choices(sizes_of(name, tensor.shape))
            choice = next(choice for choice, _, holds in choices if holds)
            used[id(choice)] = choice
            tensors.setdefault(id(choice), []).append(tensor)
        self.each = [_make(run, used[key], of_call) for key, of_call in tensors.items()]

    def step(self) -> None:
        """Update all tensors that have a gradient."""
        check = patch("torch.optim.adam._device_dtype_check_for_fused", _accepts_meta)
        with check, stepping():
            for optimizer in self.each:
                optimizer.step()

    def states(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return what is kept for a tensor from one step to the next."""
        by_optimizer = (
            optimizer.state[tensor].values() for optimizer in self.each if tensor in optimizer.state
        )
        return [
            state for states in by_optimizer for state in states if isinstance(state, torch.Tensor)
        ]


def _make(
    run: RunConfig, optimizer: OptimizerData, tensors: list[torch.Tensor]
) -> torch.optim.Optimizer:
    call = _class_of(run.optimizer, optimizer)
    kernels = {"foreach": run.foreach, "fused": run.fused}
    parameters = signature(call).parameters
    settings = {kernel: is_run for kernel, is_run in kernels.items() if kernel in parameters}
    return _after(optimizer.first_steps, call)(tensors, **optimizer.arguments, **settings)


def import_library(run: RunConfig) -> None:
    """Import what a run's optimizer needs, which may make tensors. Raises InputError."""
    _class_of(run.optimizer, optimizer_named(run.optimizer))


def why_not_measured(run: RunConfig) -> str | None:
    """Return why no optimizer of a run can step here; None if one can."""
    try:
        import_library(run)
    except InputError as error:
        return f"{NOT_INSTALLED}{error.mistakes[0]}"
    return None


def _class_of(name: str, optimizer: OptimizerData) -> type:
    if optimizer.call is None:
        raise InputError([f"optimizer = {name}: nothing steps it here: predicted alone"])
    package, _, class_name = optimizer.call.rpartition(".")
    try:
        return getattr(import_module(package), class_name)
    except ImportError:
        line = f"optimizer = {name}: {optimizer.library} is not installed here: predicted alone"
        raise InputError([line]) from None


def _after(n_step: int, call: type) -> type:
    """Return an optimizer whose tensors begin after some steps, which differ from later ones."""
    if not n_step:
        return call

    def init_group(self, *args):
        result = call._init_group(self, *args)
        for state in self.state.values():
            if state["step"] == 0:
                state["step"] += n_step
        return result

    return type(call.__name__, (call,), {"_init_group": init_group})


def _accepts_meta(parameter: torch.Tensor) -> None:
    """Accept tensors on meta, where the fused kernel runs but torch refuses the device."""
    if not parameter.is_meta:
        _device_dtype_check_for_fused(parameter)


class Optimizer:
    """An optimizer over the parameters of a model, or over their float32 copies."""

    def __init__(self, model: nn.Module, run: RunConfig):
        named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
        trained = [p for _, p in named]
        self.buffer = GradientBuffer(trained) if run.gradient_casts == "accumulated" else None
        # Each parameter and the tensor that the optimizer updates: itself or its copy.
        self.pairs = [(p, local(p).float() if run.master_weights else p) for p in trained]
        self.master_weights = run.master_weights
        self.drops_cast = run.gradient_casts == "one_by_one"
        names = (_component(model, path) for path, _ in named)
        copies = (copy for _, copy in self.pairs)
        pairs = list(zip(names, copies, strict=True))
        self.in_backward = run.optimizer_in_backward
        if self.in_backward:
            self.each = {pair[1]: _UpdateInBackward(pair, run) for pair in pairs}
        else:
            self.torch = TorchOptimizers(pairs, run)

    def step(self) -> None:
        """Apply the gradients, then drop them."""
        if self.in_backward:
            return
        if self.master_weights:
            for parameter, copy in self.pairs:
                # The gradient of a buffer is float32, which is no copy.
                copy.grad = next((gradient.float() for gradient in gradients(parameter)), None)
                if self.drops_cast:
                    parameter.grad = None
        self.torch.step()
        if self.master_weights:
            with torch.no_grad():
                for parameter, copy in self.pairs:
                    local(parameter).copy_(copy)
                    copy.grad = None
        for parameter, _ in self.pairs:
            parameter.grad = None
        if self.buffer:
            self.buffer.clear()

    def states(self) -> dict[torch.Tensor, list[torch.Tensor]]:
        """Return the tensors kept from one step to the next, by parameter."""
        if self.in_backward:
            return {p: self.each[p].torch.states(p) for p, _ in self.pairs}
        return {
            parameter: [*([copy] if self.master_weights else []), *self.torch.states(copy)]
            for parameter, copy in self.pairs
        }


class _UpdateInBackward:
    """An optimizer of one parameter, which steps when its gradient is there, and frees it."""

    def __init__(self, named: tuple[str, torch.Tensor], run: RunConfig):
        self.torch = TorchOptimizers([named], run)
        named[1].register_post_accumulate_grad_hook(self.update)

    def update(self, parameter: torch.Tensor) -> None:
        """Step, and free the gradient."""
        self.torch.step()
        parameter.grad = None


def _component(model: nn.Module, path: str) -> str:
    """Return the component of a parameter; embeddings and head of a class are called as ours."""
    module = model.get_submodule(path.rpartition(".")[0])
    if isinstance(module, nn.Embedding):
        return "embedding"
    head: Any = getattr(model, "get_output_embeddings", lambda: None)
    return "head" if head() is module else component_of(path)


class PartOptimizer:
    """An optimizer over one data-parallel device's part of all parameters, in float32.

    All parameters are one row of numbers, of which each device has a part, as in ZeRO-1
    (Rajbhandari et al. 2020, §5.1) and in Megatron-Core's distributed optimizer. Gradients are
    added up in a buffer of the whole row; what communicates them, and the updated numbers, works
    in place there (optimizer/distrib_optimizer.py), and moves nothing here.
    """

    def __init__(self, model: nn.Module, run: RunConfig):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.buffer = GradientBuffer(self.parameters)
        n_all = len(self.buffer.numbers)
        chunk = ceil_div(n_all, replicas(run))
        self.first = min(rank(run) * chunk, n_all)
        self.numbers = torch.empty_like(self.buffer.numbers[self.first : self.first + chunk])
        self._copy(self.numbers, from_parameters=True)
        self.torch = TorchOptimizers([(MODEL, self.numbers)], run)

    def _copy(self, numbers: torch.Tensor, from_parameters: bool) -> None:
        """Copy this device's part from the parameters, or to them."""
        at = -self.first
        for parameter in self.parameters:
            row = local(parameter).view(-1)
            of_part = numbers[max(at, 0) : max(at + len(row), 0)]
            of_row = row[max(-at, 0) :][: len(of_part)]
            if from_parameters:
                of_part.copy_(of_row)
            else:
                of_row.copy_(of_part)
            at += len(row)

    def step(self) -> None:
        """Apply the gradients, then set them to zero."""
        self.numbers.grad = self.buffer.numbers[self.first :][: len(self.numbers)]
        self.torch.step()
        self.numbers.grad = None
        self._copy(self.numbers, from_parameters=False)
        self.buffer.clear()

    def states(self) -> dict[torch.Tensor, list[torch.Tensor]]:
        """Return the tensors kept from one step to the next, by what they belong to: the part."""
        return {self.numbers: [self.numbers, *self.torch.states(self.numbers)]}
