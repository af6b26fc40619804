"""Timeline of attention's forward pass in training."""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import (
    bytes_of,
    casts,
    gathers_again,
    products,
    tokens,
    widening,
)
from modelbudget.components import attention_core, context_parallel, rope
from modelbudget.components.attention.conditions import PEAK_IF
from modelbudget.components.attention.fields import PACKED
from modelbudget.components.attention.layout import (
    d_rotary,
    has_rope,
    heads,
    heads_are_cast,
    heads_are_normed,
    is_written_out,
    own_tables,
    shares_storage,
)
from modelbudget.components.attention.saved import cached_casts, later_biases, saved
from modelbudget.components.contract import Place, valid_if
from modelbudget.memory.timeline import Allocation, Timeline, all_gather, all_reduce, times

DISTANCE = 8 + 1
"""Bytes of the distance from a query to a key (int64), and of whether it is outside the window."""


@valid_if(*PEAK_IF)
def forward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Return the timeline of the forward pass, from the input to the output and all that is saved.

    Projections, norms, RoPE, the mask of a window that hides some scores (`hides` 1), scaled
    dot-product attention, a copy of its result that is contiguous per token, the output projection.
    """
    held, p = saved(a, r), products(r)
    size, n, math = bytes_of(p.dtype), tokens(r), int(r.attention_kernel == "math")
    query, key = (size * n * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    copied = context_parallel.result_apart(heads(a, r), p) * query
    of_query, of_key, of_value = context_parallel.kept_inputs(heads(a, r), p)
    freed = _inputs_freed(a, p, of_query, of_key, of_value)
    mask, distances = (
        attention_core.mask_of_window(r, hides),
        hides * DISTANCE * r.length * r.length,
    )
    of_inputs = casts(r) * sum(held.get(name, 0) for name in PACKED)
    of_gate, of_output = (casts(r) * one for one in later_biases(a, size))
    cached = casts(r) * cached_casts(a, r) - of_gate - of_output
    weight = casts(r) * size * a.d_model * a.n_head * a.d_head
    cast_first = heads_are_cast(a, r) * (1 - is_written_out(r))
    cast, normed = cast_first * (query + key), heads_are_normed(a, r) * (query + key)
    unread = cast_first * ((1 - of_query) * query + (1 - of_key) * key)
    cast_later = heads_are_cast(a, r) * (query + key) - cast
    freed += int(r.recompute != "selective") * mask
    joined, copies, shared = query + 2 * key, int(r.projections == "copied"), shares_storage(r)
    gate = [
        Allocation("gate", casts(r) * held.get("gate", 0) + of_gate + query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query),
    ]
    return [
        Allocation("casts of states and weights", of_inputs + cached),
        *times(gathers_again(r), all_gather(r, size * n * a.d_model)),
        Allocation(
            "query, key, value",
            joined + held["query_norm"] + held["key_norm"],
            gathers_again(r) * size * n * a.d_model,
        ),
        Allocation("their copies", copies * joined, copies * joined),
        Allocation("normed heads in single precision", normed),
        *_rope_forward(a, r),
        Allocation(
            "query and key before RoPE", 0, has_rope(a) * (1 - shared) * (query + key + normed)
        ),
        Allocation("casts of query and key", cast),
        Allocation("mask of the window", 2 * mask + distances, mask + distances),
        *context_parallel.forward(heads(a, r), p, hides),
        Allocation("casts of query and key, freed", 0, unread),
        Allocation("result contiguous per token", copied, math * copied),
        *times(a.attention_gate, gate),
        Allocation(
            "output",
            size * n * a.d_model + weight + of_output,
        ),
        *all_reduce(r, size * n * a.d_model),
        Allocation(
            "inputs of attention",
            0,
            freed - unread + widening(r) * cast + (widening(r) - 1) * cast_later,
        ),
    ]


def _inputs_freed(a: Fields, r: Run, of_query, of_key, of_value):
    """Bytes of queries, keys and values that are freed after attention, which saves copies instead.

    The arguments are 1 where it saves these themselves. Packed, all are freed with the last one.
    """
    query, key = (
        bytes_of(r.dtype) * tokens(r) * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head)
    )
    own = (1 - of_query) * query + (1 - of_key) * key
    if not shares_storage(r):
        return own + (1 - of_value) * key
    if has_rope(a):
        return own + (1 - of_value) * (query + 2 * key)
    return (1 - of_query) * (1 - of_value) * (query + 2 * key)


def _rope_forward(a: Fields, r: Run) -> Timeline:
    """RoPE of queries, and of keys."""
    if r.rope_tables == "complex":
        return times(has_rope(a), rope.forward_complex(r, a.n_head + a.n_kv_head, a.d_head))
    found = []
    for n_head in (a.n_head, a.n_kv_head):
        if own_tables(a, r):
            found += rope.forward(products(r), n_head, a.d_head, d_rotary(a))
        else:
            found += rope.forward_whole(r, n_head, a.d_head)
    return times(has_rope(a), found)
