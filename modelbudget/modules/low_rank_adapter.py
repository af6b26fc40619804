"""Low-rank adapters (Hu et al. 2022, §4.1), with the operations of PEFT's LoRA."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from modelbudget.architecture.run_adapter import ALL_LINEAR
from modelbudget.architecture.run_config import RunConfig


class AdaptedLinear(nn.Linear):
    """A frozen linear layer, plus a product of two trained matrices of low rank."""

    def __init__(self, base: nn.Linear, run: RunConfig):
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        weight, rank = base.weight, run.adapter_rank
        dtype = weight.dtype if run.adapter_dtype == "dtype" else torch.float32
        self.lora_A, self.lora_B = (
            skip_init(nn.Linear, d_in, d_out, False, device=weight.device, dtype=dtype)
            for d_in, d_out in ((self.in_features, rank), (rank, self.out_features))
        )
        self.lora_dropout: nn.Module = nn.Dropout(0.1 * run.adapter_dropout)
        self.scaling = 2.0

    def forward(self, x):
        result = F.linear(x, self.weight, self.bias)
        dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling
        return result.to(dtype)


def adapt(model: nn.Module, run: RunConfig) -> None:
    """Freeze a model and give the linear layers that a run names an adapter, once.

    Raises ValueError if it has none of them.
    """
    if run.adapter == "none" or any(isinstance(part, AdaptedLinear) for part in model.modules()):
        return
    model.requires_grad_(False)
    targets = run.adapter_targets.split()
    adapted = {
        path: AdaptedLinear(part, run)
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear)
        and (path.rpartition(".")[2] in targets or ALL_LINEAR in targets)
    }
    if not adapted:
        raise ValueError(f"adapter_targets = {run.adapter_targets!r}: no linear layer of that name")
    for path, part in adapted.items():
        model.set_submodule(path, part)
