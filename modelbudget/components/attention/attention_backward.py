"""Timeline of attention's backward pass."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, computed_again, exact_bytes, tokens
from modelbudget.components import context_parallel, norm, rope
from modelbudget.components.attention.attention_conditions import PEAK_IF
from modelbudget.components.attention.attention_layout import (
    d_rotary,
    has_rope,
    heads,
    n_vectors,
    own_tables,
    scaled_apart,
)
from modelbudget.components.attention.attention_saved import saved, saved_by_head_norm
from modelbudget.components.contract import Place, valid_if
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    gradients_done,
    linear_backward,
    times,
)


@valid_if(*PEAK_IF)
def backward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Output projection, gate, core, RoPE; then value, key and query, each with its norm.

    `hides`: as in forward.
    """
    saved_bytes = saved(a, r)
    size, states = bytes_of(r.dtype), bytes_of(r.dtype) * tokens(r) * a.d_model
    query = size * tokens(r) * a.n_head * a.d_head
    weight = size * a.n_head * a.d_head * a.d_model
    output = weight, size * a.output_bias * a.d_model, query
    early = computed_again(r)
    read = size * tokens(r) * a.d_model
    saved_input = read, early * (1 - place.is_first)
    of_states = accumulate(states)
    result, others = context_parallel.copied_result(heads(a, r), r), place.others
    gate = [
        Allocation("gated result gradients", 2 * query, query + result),
        Allocation("sigmoid gradient", query, 2 * query),
        *_projection("gate", a, r, a.n_head, a.query_bias, times(others, of_states)),
    ]
    return [
        *linear_backward("output", *output, place.given, saved_bytes["output"], early),
        *gradients_done("output", sum(output[:2])),
        *times(a.attention_gate, gate),
        *context_parallel.backward(heads(a, r), r, hides),
        *_rope_backward(a, r),
        *_projections_backward(a, r, others, saved_input),
    ]


def _projections_backward(a: Fields, r: Run, others, saved_input: tuple) -> Timeline:
    """Value, key and query, each with its norm."""
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    added = times(1 - (1 - others) * (1 - a.attention_gate), accumulate(states))
    of_states = accumulate(states)
    return [
        *_projection("value", a, r, a.n_kv_head, a.value_bias, added),
        *_head_norm_backward(a, r, a.n_kv_head),
        *_projection("key", a, r, a.n_kv_head, a.key_bias, of_states),
        *_head_norm_backward(a, r, a.n_head),
        *_projection("query", a, r, a.n_head, a.query_bias, of_states, *saved_input),
    ]


def _rope_backward(a: Fields, r: Run) -> Timeline:
    """RoPE of keys, and of queries."""
    if own_tables(a, r):
        of_keys, of_queries = (
            rope.backward(r, n_head, a.d_head, d_rotary(a)) for n_head in (a.n_kv_head, a.n_head)
        )
        timeline = [*of_keys, *of_queries]
    else:
        # With full checkpointing the tables are arguments of the layers, until the first is done.
        table = (1 - computed_again(r)) * rope.tables(r, d_rotary(a))
        timeline = [
            *rope.backward_whole(r, a.n_kv_head, a.d_head, 0),
            *rope.backward_whole(r, a.n_head, a.d_head, table),
        ]
    return times(has_rope(a), timeline)


def _projection(
    name: str, a: Fields, r: Run, n_head, bias, then: Timeline, saved_input=0, early=0
) -> Timeline:
    """Return the timeline of the gradients of a projection's weight, bias and input, and `then`.

    The gradient of the heads may be copied first, to be contiguous per token; fewer bytes are live
    then than in the attention before.
    """
    size, width = bytes_of(r.dtype), n_head * a.d_head
    states, heads = size * tokens(r) * a.d_model, size * tokens(r) * width
    weight, of_bias = size * width * a.d_model, size * bias * width
    return [
        *linear_backward(name, weight, of_bias, states, heads, saved_input, early),
        *gradients_done(name, weight + of_bias, then, bias),
    ]


def _head_norm_backward(a: Fields, r: Run, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    size, width = bytes_of(r.dtype), n_head * a.d_head
    of_one = size * (a.d_head if a.qk_norm == "shared" else width)
    of_scale, of_bias = a.norm_scale * of_one, a.qk_norm_bias * of_one
    states = size * tokens(r) * width
    if norm.is_written_out(a, r):
        rms = exact_bytes(r.dtype) * n_vectors(a, tokens(r), n_head)
        return norm.composed_backward(a, r, states, rms, of_scale)
    apart = scaled_apart(a, r)
    scale = [
        Allocation("head norm bias gradient", of_bias, gradients=of_bias),
        *norm.scale_backward(r, states, of_scale),
    ]
    by_norm = saved_by_head_norm(a, r, n_head) - apart * states
    with_norm = (1 - apart) * (of_scale + of_bias)
    return [
        *times(apart, scale),
        Allocation("head norm gradient", states + with_norm, states + by_norm, gradients=with_norm),
    ]
