"""The optimizer of a run, with or without master weights."""

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.gradients import GradientBuffer, gradients


class Optimizer:
    """Torch's SGD or AdamW over the parameters of a model, or over their float32 copies."""

    def __init__(self, model: nn.Module, run: RunConfig):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buffer = GradientBuffer(trained) if run.gradient_casts == "accumulated" else None
        # Each parameter and the tensor that the optimizer updates: itself or its copy.
        self.pairs = [(p, p.detach().float() if run.master_weights else p) for p in trained]
        self.master_weights = run.master_weights
        self.drops_cast = run.gradient_casts == "one_by_one"
        worked_on = [copy for _, copy in self.pairs]
        if run.optimizer == "adamw":
            self.torch = torch.optim.AdamW(worked_on, foreach=run.foreach)
        else:
            momentum = 0.9 if run.optimizer == "momentum" else 0.0
            self.torch = torch.optim.SGD(worked_on, 1e-3, momentum, foreach=run.foreach)

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
                    parameter.copy_(copy)
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
