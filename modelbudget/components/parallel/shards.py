"""Shards of FSDP2: what one of several devices holds of each parameter tensor.

Torch divides the rows of a tensor into chunks of ⌈rows / devices⌉ and pads the last ones, so that
all devices hold the same storage; the optimizer keeps states of a device's own rows only
(`_fsdp_param.py`: `_init_sharded_param`, `reset_sharded_param`).
"""

from math import prod

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.run_values import (
    index_of_device,
    own_numbers,
    rank,
    replicas,
    replicas_of_experts,
)
from modelbudget.memory.parameter_tensors import Tensor


def devices(r: Run, tensor: Tensor):
    """Count the devices that each hold a shard of a tensor."""
    return replicas_of_experts(r) if tensor.is_routed else replicas(r)


def with_padding(r: Run, tensor: Tensor):
    """Count the numbers of a device's shard, those of its padding included."""
    n_rows, columns = _shape(tensor)
    return ceil_div(n_rows, devices(r, tensor)) * columns


def numbers(r: Run, tensor: Tensor):
    """Count the numbers of a device's own rows: of the last device what the others leave."""
    n_rows, columns = _shape(tensor)
    index = rank(r)
    if tensor.is_routed:  # among the devices with the same experts
        index = index_of_device(r, r.data_parallel, r.context_parallel)
    return own_numbers(r, n_rows, devices(r, tensor), index) * columns


def of_device(r: Run, tensor: Tensor) -> Tensor:
    """Return the tensor of a device's own rows."""
    return tensor._replace(numbers=numbers(r, tensor)) if tensor.shape else tensor


def _shape(tensor: Tensor) -> tuple:
    """Return the number of rows and the numbers of each; 0 of an absent tensor or without shape."""
    rows, *columns = tensor.shape or (0, 0)
    return rows, prod(columns)
