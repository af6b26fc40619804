"""Low-rank adapters (Hu et al. 2022, §4.1), with the operations of PEFT's LoRA."""

import torch
from torch import nn
from torch.nn.utils import skip_init

from modelbudget.architecture.run_adapter import ALL_LINEAR
from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.weight_formats import Stored


class Adapted(nn.Module):
    """A frozen linear layer, stored in its dtype or quantised, plus a product of low rank.

    The parameters of the base are its own, so that components keep their names.
    """

    def __init__(self, base: nn.Linear | Stored, run: RunConfig):
        super().__init__()
        for name, parameter in base.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.of_base = base.forward
        device = next(base.parameters()).device
        d_out, d_in = base.weight.shape if isinstance(base, nn.Linear) else base.shape
        base_dtype = base.weight.dtype if isinstance(base, nn.Linear) else base.dtype
        dtype = base_dtype if run.adapter_dtype == "dtype" else torch.float32
        self.lora_A, self.lora_B = (
            skip_init(nn.Linear, *widths, False, device=device, dtype=dtype)
            for widths in ((d_in, run.adapter_rank), (run.adapter_rank, d_out))
        )
        self.lora_dropout: nn.Module = nn.Dropout(0.1 * run.adapter_dropout)
        self.scaling = 2.0

    def forward(self, x):
        result = self.of_base(x)
        dtype = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.scaling
        return result.to(dtype)


def adapt(model: nn.Module, run: RunConfig) -> None:
    """Freeze a model and give the linear layers that a run names an adapter, once.

    Raises ValueError if it has none of them.
    """
    if run.adapter == "none" or any(isinstance(part, Adapted) for part in model.modules()):
        return
    model.requires_grad_(False)
    targets = run.adapter_targets.split()
    adapted = {
        path: Adapted(part, run)
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear | Stored)
        and (path.rpartition(".")[2] in targets or ALL_LINEAR in targets)
    }
    if not adapted:
        raise ValueError(f"adapter_targets = {run.adapter_targets!r}: no linear layer of that name")
    for path, part in adapted.items():
        model.set_submodule(path, part)
