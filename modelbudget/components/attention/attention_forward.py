"""Timeline of attention's forward pass in training."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components import context_parallel, rope, scaled_dot_product
from modelbudget.components.attention.attention_conditions import PEAK_IF
from modelbudget.components.attention.attention_layout import d_rotary, has_rope, heads, own_tables
from modelbudget.components.attention.attention_saved import saved
from modelbudget.components.contract import Place, valid_if
from modelbudget.memory.timeline import Allocation, Timeline, all_reduce, times

PLACES = 8 + 8
"""Bytes of the position of a query, and of the first token in its window (int64)."""


@valid_if(*PEAK_IF)
def forward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Return the timeline of the forward pass, from the input to the output and all that is saved.

    Projections, norms, RoPE, the mask of a window that hides some scores (`hides` 1), scaled
    dot-product attention, a copy of its result that is contiguous per token, the output projection.
    """
    saved_bytes = saved(a, r)
    size, n, math = bytes_of(r.dtype), tokens(r), int(r.attention_kernel == "math")
    query, key = (size * n * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    copied = context_parallel.result_apart(heads(a, r), r) * query
    of_query, of_key, of_value = context_parallel.kept_inputs(heads(a, r), r)
    # Of queries, keys and values, those of which attention saves copies.
    freed = (1 - of_query) * query + (1 - of_key + 1 - of_value) * key
    mask = scaled_dot_product.mask_of_window(r, hides)
    places, seen = hides * PLACES * r.length, hides * r.length * r.length
    freed += int(r.recompute != "selective") * math * mask  # other kernels save it
    gate = [
        Allocation("gate", query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query),
    ]
    return [
        Allocation(
            "query, key, value",
            query + 2 * key + saved_bytes["query_norm"] + saved_bytes["key_norm"],
        ),
        *_rope_forward(a, r),
        Allocation("query and key before RoPE", 0, has_rope(a) * (query + key)),
        Allocation("keys in the window", 2 * seen + places, seen + places),
        Allocation("mask of the window", mask, seen),
        *context_parallel.forward(heads(a, r), r, hides),
        Allocation("result contiguous per token", copied, math * copied),
        *times(a.attention_gate, gate),
        Allocation("output", size * n * a.d_model),
        *all_reduce(r, size * n * a.d_model),
        Allocation("inputs of attention", 0, freed),
    ]


def _rope_forward(a: Fields, r: Run) -> Timeline:
    """RoPE of queries, and of keys."""
    timeline = []
    for n_head in (a.n_head, a.n_kv_head):
        if own_tables(a, r):
            timeline += rope.forward(r, n_head, a.d_head, d_rotary(a))
        else:
            timeline += rope.forward_whole(r, n_head, a.d_head)
    return times(has_rope(a), timeline)
