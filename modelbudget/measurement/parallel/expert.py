"""Routed experts that several devices divide among them, with torch's all-to-all, on meta.

Each device has consecutive experts. It sends the rows of its tokens to the devices of their
experts, which copy what they receive from the order of the devices to that of their experts, and
the results back. On meta there are no choices: rows are distributed as `routing` says.
"""

from typing import NamedTuple

import torch
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor
from torch.distributed.device_mesh import DeviceMesh

from modelbudget.architecture.run_config import RunConfig
from modelbudget.modules.feed_forward.moe import ExpertLinear, MoE, evenly


def divide(model: nn.Module, run: RunConfig, mesh: DeviceMesh) -> None:
    """Leave of all routed experts those of this device."""
    for module in list(model.modules()):
        if isinstance(module, MoE):
            _divide(module, run, mesh)


def _divide(moe: MoE, run: RunConfig, mesh: DeviceMesh) -> None:
    n_local = moe.n_expert // mesh.size()
    for stack in filter(lambda part: isinstance(part, ExpertLinear), moe.children()):
        for name, parameter in stack.named_parameters():
            share = parameter.detach().split(n_local)[mesh.get_local_rank()].clone()
            stack.register_parameter(name, nn.Parameter(share))
    compute, n_chosen = moe.routed, moe.router.n_expert_per_token

    def routed(rows, loads: list[int]):
        """Compute the results of rows sorted by expert; `loads`: rows of each expert."""
        if rows.is_meta:
            exchange = _assumed(len(rows), n_chosen, n_local, mesh.size(), run.routing)
        else:
            exchange = _exchanged(loads, n_local, rows.device, mesh)
        rows = _all_to_all(rows, exchange.sent, exchange.received, mesh)
        rows = _transposed(rows, exchange.by_device)
        rows = compute(rows, [sum(n) for n in zip(*exchange.by_device, strict=True)])
        rows = _transposed(rows, [list(n) for n in zip(*exchange.by_device, strict=True)])
        return _all_to_all(rows, exchange.received, exchange.sent, mesh)

    moe.routed = routed


class Rows(NamedTuple):
    """Rows that a device sends to each device, and receives from each for each of its experts."""

    sent: list[int]
    by_device: list[list[int]]

    @property
    def received(self) -> list[int]:
        return [sum(numbers) for numbers in self.by_device]


def _assumed(n_row: int, n_chosen: int, n_local: int, n_device: int, routing: str) -> Rows:
    """Distribute rows without choices; those that go to one device go to this one, the first."""
    if routing == "even":
        sent = evenly(n_row, n_device)
        return Rows(sent, [evenly(n_rows, n_local) for n_rows in sent])
    most = n_row // n_chosen * min(n_chosen, n_local)
    sent = [most, *evenly(n_row - most, n_device - 1)]
    return Rows(sent, n_device * [evenly(most, n_local)])


def _exchanged(loads: list[int], n_local: int, device: torch.device, mesh: DeviceMesh) -> Rows:
    """Tell all devices how many rows their experts will receive."""
    loads_here = torch.tensor(loads, device=device)
    received = wait_tensor(all_to_all_single(loads_here, None, None, mesh.get_group()))
    return Rows(loads_here.view(-1, n_local).sum(1).tolist(), received.view(-1, n_local).tolist())


def _all_to_all(rows, sent: list[int], received: list[int], mesh: DeviceMesh):
    return wait_tensor(all_to_all_single(rows, received, sent, mesh.get_group()))


def _transposed(rows, blocks: list[list[int]]):
    """Copy rows, which are `blocks[i][j]` rows of i and j in order of i, to the order of j."""
    n = len(blocks[0])
    parts = rows.split([size for block in blocks for size in block])
    return torch.cat([part for j in range(n) for part in parts[j::n]])
