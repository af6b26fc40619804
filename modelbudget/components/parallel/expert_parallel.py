"""Devices that each have a part of the routed experts of a mixture of experts.

Each routes its own tokens. An all-to-all brings their rows to the devices of their experts, and
another one their results back (Lepikhin et al. 2021, §3.2). Rows arrive by device and are computed
by expert: they are copied from one order to the other, before the experts and after them.
"""

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import has_part_of_experts
from modelbudget.memory.timeline import Allocation, Timeline, times


def exchanges(r: Run):
    """1 where rows of tokens are sent to other devices, else 0."""
    return positive(r.expert_parallel - 1) if has_part_of_experts(r) else 0


def own_experts(a: Fields):
    """Count the routed experts of a layer that a device has: all, of a whole model."""
    return getattr(a, "n_own_expert", a.n_expert)


def received_per_token(a: Fields, r: Run):
    """Count the rows that a device's experts compute, for each of its own tokens.

    Of all tokens of all devices no more than its number of experts, with `routing: one_device`.
    """
    chosen, of_device = a.n_expert_per_token, own_experts(a)
    if r.routing == "even":
        return chosen
    return r.expert_parallel * (chosen + of_device - largest(chosen, of_device))


def forward_beyond(r: Run, received, then):
    """Bytes by which the way back needs more than what follows it.

    The experts' results and their copy by device are live, of `received` bytes each; afterwards
    `then` bytes are.
    """
    more = 2 * received - then
    return exchanges(r) * positive(more) * more


def to_experts(r: Run, sent, received) -> Timeline:
    """Return how gradients of the results, of `sent` bytes, come to the experts."""
    timeline = [
        Allocation("gradients sent to the devices of the experts", received, sent),
        Allocation("gradients in the order of the experts", received, received),
    ]
    return times(exchanges(r), timeline)


def from_experts(r: Run, sent, received) -> Timeline:
    """Return how gradients of the experts' rows, of `received` bytes, come back to their tokens."""
    timeline = [
        Allocation("gradients in the order of the devices", received, received),
        Allocation("gradients sent back", sent, received),
    ]
    return times(exchanges(r), timeline)
