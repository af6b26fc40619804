"""Rows of tokens that devices send to the devices of their experts, and back (all-to-all).

Rows arrive by device and are computed by expert: they are copied from one order to the other,
before the experts and after them. Source: torch/distributed/_functional_collectives.py
(`all_to_all_single`, whose gradient is another one), tools/autograd/derivatives.yaml (`split`, of
whose parts a copy is made).
"""

from __future__ import annotations

from collections.abc import Callable

from modelbudget.operations.autograd import with_node
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Tensor, empty


def on_other_devices(compute: Callable, rows: Tensor, n_received) -> Tensor:
    """Return the experts' results of this device's rows; it computes `n_received` others."""
    n_sent = rows.shape[0]
    rows = all_to_all(rows, n_received)
    rows = in_other_order(rows)
    rows = compute(rows)
    rows = in_other_order(rows)
    return all_to_all(rows, n_sent)


@operation
def all_to_all(x: Tensor, n) -> Tensor:
    """Send all rows and receive n."""
    n_sent = x.shape[0]
    y = empty((n, *x.shape[1:]), x.dtype)
    return with_node("all_to_all", y, [x], lambda _, g: all_to_all(g.contiguous(), n_sent))


@operation
def in_other_order(x: Tensor) -> Tensor:
    """Copy rows to another order, as is their gradient."""
    return with_node("in_other_order", empty(x.shape, x.dtype), [x], lambda _, g: in_other_order(g))
