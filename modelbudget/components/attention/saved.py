"""Bytes that attention saves for backward, and its KV cache."""

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    casts,
    gathered_inputs,
    products,
    tokens,
)
from modelbudget.components import context_parallel, norm, rope
from modelbudget.components.attention.conditions import SAVED_IF, no_mask_on_scores
from modelbudget.components.attention.layout import (
    d_gate,
    d_rotary,
    has_rope,
    heads,
    is_complex,
    is_packed,
    n_vectors,
    own_tables,
    position_of,
    scaled_apart,
)
from modelbudget.components.attention.parameters import matrices
from modelbudget.components.contract import ALONE, Place, Values, valid_if
from modelbudget.components.weight_formats import numbers_of


@valid_if(*SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    The input, which query, key and value share; inputs of the norms of queries and keys; RoPE's
    tables, where they are its own; scaled dot-product attention (`core`); the input of the output
    projection, where it is a copy. A gate saves its value, and the result that it multiplies in
    place of the projection.
    """
    p = products(r)
    by_distance, sinusoids = _saved_by_distance(a, r)
    query = bytes_of(p.dtype) * tokens(r) * a.n_head * a.d_head
    result, gated = context_parallel.copied_result(heads(a, r), p), a.attention_gate
    gate = bytes_of(p.dtype) * tokens(r) * d_gate(a)
    tables = has_rope(a) * own_tables(a, r) * 2 * rope.tables(p, d_rotary(a))
    tables += is_complex(a, r) * rope.complex_rows(r, a.d_head)
    copied = result + gated * (query - result)
    of_norm = p if norm.is_written_out(a, r) else r
    found = {
        "query": bytes_of(p.dtype) * tokens(gathered_inputs(r)) * a.d_model,
        "query_norm": saved_by_head_norm(a, of_norm, a.n_head),
        "key_norm": saved_by_head_norm(a, of_norm, a.n_kv_head),
        "": tables + gated * (gate + result) + by_distance,
        "position": sinusoids,
        "core": context_parallel.saved(heads(a, r), p),
        "norm": a.inner_norm * norm.saved_inside(a, r, query, copied, a.n_head * a.d_head),
        "output": copied + a.inner_norm * (query - copied),
    }
    cast = _casts(a, r) if casts(r) else {}
    return {name: found.get(name, 0) + cast.get(name, 0) for name in found | cast}


def _casts(a: Fields, r: Run) -> Values:
    """Return the bytes of what autocast copies: each weight, and each input but the query's."""
    size, separate = bytes_of(r.autocast), 1 - is_packed(r)
    query, key = (size * a.d_model * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    states = size * tokens(r) * a.d_model
    return {
        "query": query,
        "gate": a.attention_gate * (states + size * a.d_model * d_gate(a)),
        "key": separate * states + key,
        "value": separate * states + key,
        "output": query,
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
    by_norm = norm.saved(a, r, n_head * a.d_head, n_vectors(a, tokens(r), n_head))
    return by_norm + scaled_apart(a, r) * states


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the KV cache: one key and one value for every KV head and token.

    Shazeer 2019, §3; Ainslie et al. 2023, §2.2.
    """
    return {"": bytes_of(r.dtype) * 2 * tokens(r) * a.n_kv_head * a.d_head}


def cached_casts(a: Fields, r: Run):
    """Bytes of casts of biases, which autocast keeps to the end of the forward pass."""
    size, key = bytes_of(products(r).dtype), a.n_kv_head * a.d_head
    first = a.query_bias * a.n_head * a.d_head + (a.key_bias + a.value_bias) * key
    return size * first + sum(later_biases(a, size))


def cast_weights(a: Fields, r: Run):
    """Bytes of casts of the projections' matrices."""
    return bytes_of(products(r).dtype) * numbers_of(matrices(a))


def later_biases(a: Fields, size) -> tuple:
    """Bytes of the biases that are read after queries, keys and values: of gate and output."""
    gate = a.attention_gate * a.query_bias * d_gate(a)
    return size * gate, size * a.output_bias * a.d_model
