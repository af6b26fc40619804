"""Attention where each of several devices has a part of the tokens of a sequence, by formula.

Only of all-to-all, which searches of layouts read over columns; what is gathered or comes in a ring
is computed by the program alone (`devices/ring_blocks.py`).

All-to-all (Jacobs et al. 2023, §3): devices exchange queries, keys and values, so that each has all
tokens of a part of the heads, and the results back. A device sends a copy in the order of the
devices; what it receives is in that order too, and is copied unless a view is in the order of the
tokens: for one sequence, where tokens are joined.
"""

from modelbudget.architecture.arithmetic import ceil_div, is_nothing, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.memoised_run import changed
from modelbudget.architecture.run_values import divides_context, exchanges_context, tokens
from modelbudget.components import scaled_dot_product
from modelbudget.components.scaled_dot_product import Heads
from modelbudget.memory.timeline import Allocation, Timeline, times


def sends_heads(r: Run) -> bool:
    """Whether a device has all tokens of its heads, or else its own tokens of all heads."""
    return not divides_context(r) or r.context_exchange == "all_to_all"


def saved(h: Heads, r: Run):
    """Bytes saved for backward: of all tokens of a device's heads."""
    x = exchanges_context(r)
    if is_nothing(x):
        return scaled_dot_product.saved(h, r)
    return (1 - x) * scaled_dot_product.saved(h, r) + x * scaled_dot_product.saved(
        *_all_tokens(h, r)
    )


def copied_result(h: Heads, r: Run):
    """Return the bytes of the result that the output projection saves: what has been exchanged."""
    x = exchanges_context(r)
    alone = (1 - x) * scaled_dot_product.copied_result(h, r)
    return alone + x * scaled_dot_product.bytes_of_width(r, h.n_head * h.d_value)


def result_apart(h: Heads, r: Run):
    """Return 1 where the result is contiguous per head, 0 where it is contiguous per token."""
    return (1 - exchanges_context(r)) * scaled_dot_product.result_apart(h, r)


def kept_inputs(h: Heads, r: Run) -> tuple:
    """1 where backward reads the given queries, keys and values themselves, 0 where copies."""
    alone = 1 - exchanges_context(r)
    return tuple(alone * n_bytes for n_bytes in scaled_dot_product.kept_inputs(h, r))


def forward(h: Heads, r: Run, hides=0) -> Timeline:
    """Return the timeline from queries, keys and values to the result and all that is saved."""
    x = exchanges_context(r)
    alone = times(1 - x, scaled_dot_product.forward(h, r, hides))
    if is_nothing(x):
        return alone
    to_heads = [
        allocation for name, size in _inputs(h, r) for allocation in _to_heads(name, r, size)
    ]
    core = scaled_dot_product.forward(*_all_tokens(h, r))
    back = _to_tokens(r, scaled_dot_product.bytes_of_width(r, h.n_head * h.d_value))
    return [*alone, *times(x, [*to_heads, *core, *back])]


def backward(h: Heads, r: Run, hides=0) -> Timeline:
    """From the gradient of the result to those of queries, keys and values."""
    x = exchanges_context(r)
    alone = times(1 - x, scaled_dot_product.backward(h, r, hides))
    if is_nothing(x):
        return alone
    back = _to_tokens_backward(r, scaled_dot_product.bytes_of_width(r, h.n_head * h.d_value))
    core = scaled_dot_product.backward(*_all_tokens(h, r))
    inputs = _inputs(h, r)[::-1]
    from_heads = [
        allocation for name, size in inputs for allocation in _to_heads_backward(name, r, size)
    ]
    return [*alone, *times(x, [*back, *core, *from_heads])]


def flops(r: Run, products, d_query):
    """FLOPs of attention's products of length²: `products` times a query's channels and keys."""
    return products * tokens(r) * whole_length(r) * d_query


def whole_length(r: Run):
    """Tokens of a sequence on all devices."""
    return getattr(r, "whole_length", r.length)


def _all_tokens(h: Heads, r: Run) -> tuple[Heads, Run]:
    """Return a device's part of the heads, contiguous per token, and the run of all tokens."""
    n_head, n_kv_head = (ceil_div(n, r.context_parallel) for n in (h.n_head, h.n_kv_head))
    part = h._replace(n_head=n_head, n_kv_head=n_kv_head, d_stored=h.d_value, rope=0)
    return part, changed(r, {"length": whole_length(r)})


def _inputs(h: Heads, r: Run) -> list[tuple]:
    key, value = (h.n_kv_head * width for width in (h.d_key, h.d_value))
    widths = {"query": h.n_head * h.d_key, "key": key, "value": value}
    return [(name, scaled_dot_product.bytes_of_width(r, width)) for name, width in widths.items()]


def _several(r: Run):
    """1 where a device has several tokens: the order of a single one's heads needs no copy."""
    return positive(tokens(r) - 1)


def _to_heads(name: str, r: Run, size) -> Timeline:
    of_heads, of_tokens = _several(r) * size, positive(r.batch - 1) * size
    return [
        Allocation(f"{name} in the order of the devices", of_heads),
        Allocation(f"{name} exchanged", size, of_heads),
        Allocation(f"{name} in the order of the tokens", of_tokens, of_tokens),
    ]


def _to_heads_backward(name: str, r: Run, size) -> Timeline:
    of_heads, of_tokens = _several(r) * size, positive(r.batch - 1) * size
    return [
        Allocation(f"{name} gradient in the order of the devices", of_tokens, of_tokens),
        Allocation(f"{name} gradient exchanged", size, size),
        Allocation(f"{name} gradient in the order of the heads", of_heads, of_heads),
    ]


def _to_tokens(r: Run, size) -> Timeline:
    """Return the timeline of a result's exchange; checkpointed attention does not save its own."""
    of_heads, of_tokens = _several(r) * size, positive(r.batch - 1) * size
    freed = of_heads + int(r.recompute == "selective") * size
    return [
        Allocation("result in the order of the devices", of_tokens),
        Allocation("result exchanged", size, of_tokens),
        Allocation("result in the order of the heads", of_heads, freed),
    ]


def _to_tokens_backward(r: Run, size) -> Timeline:
    of_heads, of_tokens = _several(r) * size, positive(r.batch - 1) * size
    return [
        Allocation("result gradient in the order of the devices", of_heads),
        Allocation("result gradient exchanged", size, size + of_heads),
        Allocation("result gradient in the order of the tokens", of_tokens, of_tokens),
    ]
