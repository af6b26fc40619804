"""The optimizer of a run, with or without master weights, of all parameters or of a part."""

from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import _device_dtype_check_for_fused

from modelbudget.architecture.operations import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import rank, replicas
from modelbudget.measurement.gradients import GradientBuffer, gradients, local

MODEL = "model"
"""The component of states that are one tensor for all parameters."""


def make_optimizer(model: nn.Module, run: RunConfig) -> "Optimizer | PartOptimizer":
    """Return the optimizer of a run."""
    return PartOptimizer(model, run) if run.zero == 1 else Optimizer(model, run)


def torch_optimizer(worked_on: Sequence[torch.Tensor], run: RunConfig) -> torch.optim.Optimizer:
    """Return torch's SGD or AdamW."""
    if run.fused:
        return FusedAdamW(worked_on, fused=True)
    if run.optimizer == "adamw":
        return torch.optim.AdamW(worked_on, foreach=run.foreach)
    momentum = 0.9 if run.optimizer == "momentum" else 0.0
    return torch.optim.SGD(worked_on, 1e-3, momentum, foreach=run.foreach)


def _accepts_meta(parameter: torch.Tensor) -> None:
    if not parameter.is_meta:
        _device_dtype_check_for_fused(parameter)


class FusedAdamW(torch.optim.AdamW):
    """Torch's fused AdamW, on meta too, where its kernel runs but torch refuses the device."""

    def step(self, closure=None):
        with patch("torch.optim.adam._device_dtype_check_for_fused", _accepts_meta):
            return super().step(closure)


class Optimizer:
    """Torch's SGD or AdamW over the parameters of a model, or over their float32 copies."""

    def __init__(self, model: nn.Module, run: RunConfig):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buffer = GradientBuffer(trained) if run.gradient_casts == "accumulated" else None
        # Each parameter and the tensor that the optimizer updates: itself or its copy.
        self.pairs = [(p, local(p).float() if run.master_weights else p) for p in trained]
        self.master_weights = run.master_weights
        self.drops_cast = run.gradient_casts == "one_by_one"
        self.torch = torch_optimizer([copy for _, copy in self.pairs], run)

    def step(self) -> None:
        """Apply the gradients, then drop them."""
        if self.master_weights:
            for parameter, copy in self.pairs:
                # The gradient of a buffer is float32, which is no copy.
                copy.grad = next((one.float() for one in gradients(parameter)), None)
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

    def states(self) -> dict[nn.Parameter, list[torch.Tensor]]:
        """Return the tensors kept from one step to the next, by parameter."""
        return {
            parameter: [
                *([copy] if self.master_weights else []),
                *(s for s in self.torch.state[copy].values() if isinstance(s, torch.Tensor)),
            ]
            for parameter, copy in self.pairs
        }


class PartOptimizer:
    """Torch's SGD or AdamW over one data-parallel device's part of all parameters, in float32.

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
        self.torch = torch_optimizer([self.numbers], run)

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

    def states(self) -> list[torch.Tensor]:
        """Return the tensors kept from one step to the next."""
        found = self.torch.state[self.numbers].values()
        return [self.numbers, *(one for one in found if isinstance(one, torch.Tensor))]
