"""Attention where each of several devices has a part of the tokens of a sequence, by formula.

Only of all-to-all, which searches of layouts read over columns; what is gathered or comes in a ring
is computed by the program alone (`devices/ring_blocks.py`).

All-to-all (Jacobs et al. 2023, §3): devices exchange queries, keys and values, so that each has all
tokens of a part of the heads, and the results back. FlashAttention needs as much of these as of a
device's own tokens of all heads. A device sends a copy in the order of the devices, if it has
several tokens. Where a result is as wide as queries, more is live while it is sent, or in the
kernel, than while queries, keys, values or their gradients are, or are put in order: those moments
are left out.
"""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.run_values import exchanges_context, tokens
from modelbudget.components import scaled_dot_product
from modelbudget.components.scaled_dot_product import Heads
from modelbudget.memory.timeline import Allocation, Timeline, times


def forward(h: Heads, r: Run, hides=0) -> Timeline:
    """Return the timeline from queries, keys and values to the result and all that is saved.

    Checkpointed attention does not save the result of its heads.
    """
    x, (result, copy) = exchanges_context(r), _result(h, r)
    freed = copy + int(r.recompute == "selective") * result
    return [
        *times(x, [Allocation("query, key, value exchanged", scaled_dot_product.inputs(h, r))]),
        *scaled_dot_product.forward(h, r, hides),
        *times(x, [Allocation("result exchanged", result + copy, freed)]),
    ]


def backward(h: Heads, r: Run, hides=0) -> Timeline:
    """From the gradient of the result to those of queries, keys and values."""
    n_bytes = sum(_result(h, r))
    exchanged = Allocation("result gradient exchanged", n_bytes, n_bytes)
    return [
        *times(exchanges_context(r), [exchanged]),
        *scaled_dot_product.backward(h, r, hides),
    ]


def _result(h: Heads, r: Run) -> tuple:
    """Return the bytes of the result, and of the copy of it that is sent."""
    result = scaled_dot_product.bytes_of_width(r, h.n_head * h.d_value)
    return result, positive(tokens(r) - 1) * result
