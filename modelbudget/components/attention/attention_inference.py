"""Timeline of attention in inference."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of
from modelbudget.components import norm, rope, scaled_dot_product
from modelbudget.components.attention.attention_conditions import INFERENCE_IF
from modelbudget.components.attention.attention_layout import (
    d_rotary,
    has_rope,
    heads,
    is_packed,
    n_vectors,
    own_tables,
    rope_by_head,
)
from modelbudget.components.contract import valid_if
from modelbudget.memory.timeline import Allocation, Timeline, all_reduce, times


@valid_if(*INFERENCE_IF)
def inference(a: Fields, r: Run, new) -> Timeline:
    """Projections, RoPE, the core, the output. Keys and values move into the cache."""
    query = bytes_of(r.dtype) * r.batch * new * a.n_head * a.d_head
    key = bytes_of(r.dtype) * r.batch * new * a.n_kv_head * a.d_head
    by_head = positive(a.n_head - 1) * positive(new - 1)
    by_head_before = rope_by_head(a, r)
    query_copied = (1 - by_head_before) * positive(r.batch - 1) * by_head
    copied = by_head * {"math": 1, "flash": by_head_before, "efficient": 0}[r.attention_kernel]
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    gate = [
        Allocation("gate", query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query, 2 * query),
    ]
    rotated = [
        *_rope_inference(a, r, new, a.n_head, query),
        *_rope_inference(a, r, new, a.n_kv_head, key),
        Allocation("query and key before RoPE", 0, (1 - is_packed(r)) * (query + key)),
    ]
    # Packed, all three are freed with the last one that is read.
    to_cache = (query + 3 * key) * has_rope(a) if is_packed(r) else 2 * key
    return [
        Allocation("query", query),
        *_head_norm_inference(a, r, new, a.n_head),
        Allocation("key", key),
        *_head_norm_inference(a, r, new, a.n_kv_head),
        Allocation("value", key),
        *times(has_rope(a), rotated),
        Allocation("key and value in the cache", 0, to_cache),
        *scaled_dot_product.inference(heads(a, r), r, new, query_copied, 0),
        Allocation("result contiguous per token", copied * query, copied * query),
        *times(a.attention_gate, gate),
        Allocation("output", states),
        *all_reduce(r, states),
        Allocation("result", 0, 2 * query + is_packed(r) * (1 - has_rope(a)) * 2 * key),
    ]


def _rope_inference(a: Fields, r: Run, new, n_head, heads) -> Timeline:
    if own_tables(a, r):
        return rope.inference(r, new, n_head, d_rotary(a), heads)
    return [Allocation("RoPE", 3 * heads, 2 * heads)]


def _head_norm_inference(a: Fields, r: Run, new, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    width = n_head * a.d_head
    states = bytes_of(r.dtype) * r.batch * new * width
    vectors = n_vectors(a, r.batch * new, n_head)
    freed = Allocation("heads before the norm", 0, states)
    if a.qk_norm != "separate":
        return [*norm.inference(a, r, new, width, vectors=vectors), freed]
    return [
        *norm.inference(a, r, new, width, scaled=0, vectors=vectors),
        *times(a.norm_scale, [Allocation("head norm scale", states, states)]),
        *times(a.qk_norm_bias, [Allocation("head norm bias", states, states)]),
        freed,
    ]
