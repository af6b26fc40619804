"""Bytes that attention saves for backward, and its KV cache."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import INDEX, bytes_of, tokens
from modelbudget.components import context_parallel, norm, rope
from modelbudget.components.attention.attention_conditions import SAVED_IF, no_mask_on_scores
from modelbudget.components.attention.attention_layout import (
    d_rotary,
    has_rope,
    heads,
    n_normalised,
    n_vectors,
    own_tables,
    position_of,
    scaled_apart,
)
from modelbudget.components.contract import ALONE, Place, Values, valid_if


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
    result, gated = context_parallel.copied_result(heads(a, r), r), a.attention_gate
    tables = has_rope(a) * own_tables(a, r) * 2 * rope.tables(r, d_rotary(a))
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "query_norm": saved_by_head_norm(a, r, a.n_head),
        "key_norm": saved_by_head_norm(a, r, a.n_kv_head),
        "": tables + gated * (query + result) + by_distance,
        "position": sinusoids,
        "core": context_parallel.saved(heads(a, r), r),
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
