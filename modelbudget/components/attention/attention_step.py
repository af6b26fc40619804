"""Attention in a training step, by closed formulas: conditions, saved bytes, FLOPs, timelines."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import (
    INDEX,
    MASKS,
    bytes_of,
    computed_again,
    exact_bytes,
    tokens,
    whole_length,
)
from modelbudget.components import norm, rope, scaled_dot_product
from modelbudget.components.attention.attention_layout import (
    d_gate,
    d_rotary,
    has_rope,
    heads,
    n_normalised,
    n_vectors,
    own_tables,
    position_of,
    scaled_apart,
)
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.parallel import context_parallel
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    all_reduce,
    linear_backward,
    times,
)


def no_mask_on_scores(a: Fields, r: Run):
    """ALiBi, T5's buckets and relative positions add to the scores."""
    return int(position_of(a) not in MASKS)


def math_for_masks(a: Fields, r: Run):
    """1 unless scores that something is added to meet a kernel that never writes them out."""
    return int(position_of(a) not in MASKS or r.attention_kernel == "math")


def mask_is_not_saved(a: Fields, r: Run):
    """1 unless checkpointing saves what is added to the scores, which only some layers compute."""
    is_saved_by_layer = position_of(a) == "relative" and r.recompute == "full"
    return int(position_of(a) not in MASKS or r.recompute == "none" or is_saved_by_layer)


def no_sinks(a: Fields, r: Run):
    """Sinks add a key to the scores."""
    return 1 - a.sinks


def keeps_result(a: Fields, r: Run):
    """Return 1 unless the result is normalised, or a gate of a whole head repeated for channels."""
    return (1 - a.gate_per_head) * (1 - a.inner_norm)


def rotates_whole_heads(a: Fields, r: Run):
    """With tables of the model or complex numbers, RoPE rotates all channels of a head."""
    in_part = positive(a.d_head - d_rotary(a))
    return 1 - has_rope(a) * (1 - own_tables(a, r)) * in_part


SAVED_IF = math_for_masks, mask_is_not_saved, no_sinks, keeps_result, rotates_whole_heads
"""Conditions of the bytes that are saved."""
PEAK_IF = no_mask_on_scores, no_sinks, keeps_result, rotates_whole_heads
"""Conditions of the timelines."""


@valid_if(*SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    The input, which query, key and value share; inputs of the norms of queries and keys; RoPE's
    tables, where they are its own; scaled dot-product attention (`core`); the input of the output
    projection, where it is a copy. A gate saves its value, and the result that it multiplies in
    place of the projection.
    """
    by_distance, sinusoids = _saved_by_distance(a, r)
    query = bytes_of(r.dtype) * tokens(r) * a.n_head * a.d_head
    result, gated = scaled_dot_product.copied_result(heads(a, r), r), a.attention_gate
    tables = has_rope(a) * own_tables(a, r) * 2 * rope.tables(r, d_rotary(a))
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "query_norm": saved_by_head_norm(a, r, a.n_head),
        "key_norm": saved_by_head_norm(a, r, a.n_kv_head),
        "": tables + gated * (query + result) + by_distance,
        "position": sinusoids,
        "core": scaled_dot_product.saved(heads(a, r), r),
        "output": result + gated * (query - result),
    }


def _saved_by_distance(a: Fields, r: Run) -> tuple:
    """Return the bytes saved by the scores of relative positions, and by their projection.

    Queries with their bias, and projected distances, repeated for each sequence of several heads;
    the scores, and which of them belongs to which key (Dai et al. 2019, appendix B). The projection
    saves its input, the sinusoids.
    """
    if position_of(a) != "relative":
        return 0, 0
    size, query = bytes_of(r.dtype), r.length * a.n_head * a.d_head
    repeated = 1 + positive(a.n_head - 1) * (r.batch - 1)
    scores = (size * r.batch * a.n_head + INDEX) * r.length * r.length
    return size * (r.batch + repeated) * query + scores, size * r.length * a.d_model


def saved_by_head_norm(a: Fields, r: Run, n_head):
    if a.qk_norm == "none":
        return 0
    states = bytes_of(r.dtype) * tokens(r) * n_head * a.d_head
    by_norm = norm.saved(a, r, n_normalised(a, n_head) * a.d_head, n_vectors(a, tokens(r), n_head))
    return by_norm + scaled_apart(a, r) * states


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the KV cache: one key and one value for every KV head and token.

    Shazeer 2019, §3; Ainslie et al. 2023, §2.2.
    """
    return {"": bytes_of(r.dtype) * 2 * tokens(r) * a.n_kv_head * a.d_head}


@valid_if(math_for_masks, no_sinks)
def flops(a: Fields, r: Run, products=scaled_dot_product.FORWARD_PRODUCTS) -> Values:
    """Count the FLOPs of a forward pass.

    Projections, and scaled dot-product attention (`core`): queries by keys and scores by values,
    2·length² operations a channel each; a causal mask saves none of them here. `products`: twice
    the number of these products.
    """
    n, d_query, d_key = tokens(r), a.n_head * a.d_head, a.n_kv_head * a.d_head
    return {
        "query": 2 * n * a.d_model * d_query,
        "gate": a.attention_gate * 2 * n * a.d_model * d_gate(a),
        "key": 2 * n * a.d_model * d_key,
        "value": 2 * n * a.d_model * d_key,
        "output": 2 * n * d_query * a.d_model,
        "core": products * n * whole_length(r) * d_query,
        **_flops_of_distances(a, r),
    }


def _flops_of_distances(a: Fields, r: Run) -> Values:
    """Relative positions project sinusoids and score them (Dai et al. 2019, §3.3)."""
    if position_of(a) != "relative":
        return {}
    d_query = a.n_head * a.d_head
    return {"position": 2 * r.length * a.d_model * d_query, "": 2 * tokens(r) * r.length * d_query}


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors; sinusoids need no gradient."""
    flops_of_parts = doubled(flops(a, r, scaled_dot_product.backward_products(r)))
    return flops_of_parts | {"position": _flops_of_distances(a, r).get("position", 0)}


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
    copied = scaled_dot_product.result_apart(heads(a, r), r) * query
    of_query, of_key, of_value = scaled_dot_product.kept_inputs(heads(a, r), r)
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
    again = computed_again(r)
    read = size * tokens(r) * a.d_model
    saved_input = read, again * (1 - place.is_first)
    of_states = accumulate(states)
    result, accumulates = scaled_dot_product.copied_result(heads(a, r), r), place.accumulates
    gate = [
        Allocation("gated result gradients", 2 * query, query + result),
        Allocation("sigmoid gradient", query, 2 * query),
        *_projection("gate", a, r, a.n_head, a.query_bias, times(accumulates, of_states)),
    ]
    return [
        *linear_backward("output", *output, place.gradient, saved_bytes["output"], again),
        *times(a.attention_gate, gate),
        *context_parallel.backward(heads(a, r), r, hides),
        *_rope_backward(a, r),
        *_projections_backward(a, r, accumulates, saved_input),
    ]


def _projections_backward(a: Fields, r: Run, accumulates, saved_input: tuple) -> Timeline:
    """Value, key and query, each with its norm."""
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    added = times(1 - (1 - accumulates) * (1 - a.attention_gate), accumulate(states))
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
    name: str, a: Fields, r: Run, n_head, bias, then: Timeline, saved_input=0, again=0
) -> Timeline:
    """Return the timeline of the gradients of a projection's weight, bias and input, and `then`.

    The gradient of the heads may be copied first, to be contiguous per token; fewer bytes are live
    then than in the attention before.
    """
    size, width = bytes_of(r.dtype), n_head * a.d_head
    states, heads = size * tokens(r) * a.d_model, size * tokens(r) * width
    weight, of_bias = size * width * a.d_model, size * bias * width
    sizes = weight, of_bias, states, heads, saved_input
    return linear_backward(name, *sizes, again, then, bias)


def _head_norm_backward(a: Fields, r: Run, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    size, width = bytes_of(r.dtype), n_head * a.d_head
    n_bytes = size * (a.d_head if a.qk_norm == "shared" else width)
    of_scale, of_bias = a.norm_scale * n_bytes, a.qk_norm_bias * n_bytes
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
