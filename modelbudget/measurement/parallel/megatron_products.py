"""Divided linear layers as Megatron-Core computes them: states gathered again, fused gradients."""

from typing import Any

import torch
from torch.distributed._functional_collectives import (
    all_gather_single,
    reduce_scatter_single,
    wait_tensor,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules import megatron_linear
from modelbudget.modules.lm_head import LMHead


class _Length:
    """Devices that divide the length of states (batch, length, d_model)."""

    def __init__(self, mesh: DeviceMesh):
        self.group, self.size = mesh.get_group(), mesh.size()

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return wait_tensor(all_gather_single(x, 1, self.group))

    def sum(self, gradient: torch.Tensor) -> torch.Tensor:
        if len(gradient) == 1:  # which needs no copy in the order of the parts
            part = reduce_scatter_single(gradient[0], "sum", 0, self.group)
            return wait_tensor(part).unsqueeze(0)
        return wait_tensor(reduce_scatter_single(gradient, "sum", 1, self.group))


class _LengthOfHead(_Length):
    """The same, with one buffer for what is gathered (`get_global_memory_buffer`)."""

    buffer: torch.Tensor | None = None

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.buffer is None:
            self.buffer = x.new_empty(self.size * len(x), *x.shape[1:])
        torch.distributed.all_gather_single(self.buffer, x, group=self.group)
        return self.buffer.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1, 2)


def compute_as_megatron(module: Any, run: RunConfig, mesh: DeviceMesh, again: bool) -> None:
    """Let a divided linear layer gather its states again, add gradients to the buffer, or both."""
    if megatron_linear.fuses(run):
        setattr(module.weight, megatron_linear.FUSED, True)
    (of_weight,) = module.weight.placements
    is_column, is_head = of_weight == Shard(0), isinstance(module, LMHead)
    gathers = again and is_column
    length = (_LengthOfHead if is_head else _Length)(mesh) if gathers else None
    if not gathers and not megatron_linear.fuses(run):
        return

    def product(x):
        weight, bias = (p if p is None else p.to_local() for p in (module.weight, module.bias))
        if not gathers:
            x = x.to_local(grad_placements=[Partial()] if is_column else None)
        y = megatron_linear.Linear.apply(x, weight, bias, module.weight, length)
        if gathers and not is_head:
            return y
        return DTensor.from_local(y, mesh, [Shard(-1) if is_column else Partial()], run_check=False)

    megatron_linear.replace(module, product)
