"""Causal attention: query, key, value and output projections, with GQA or MQA if wanted."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import (
    MASKS,
    bytes_of,
    computed_again,
    exact_bytes,
    one_token,
    tokens,
)
from modelbudget.components import attention_core, norm, rope
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.norm import NormFields
from modelbudget.memory.adamw_temporaries import Tensor, linear_tensors
from modelbudget.memory.timeline import Allocation, Timeline, accumulate, linear_backward, times

GROUP = "attention"
SIZES = ()

DISTANCE = 8 + 1
"""Bytes of the distance from a query to a key (int64), and of whether it is outside the window."""


class AttentionFields(NormFields):
    n_head: Parts = Field(description="query heads")
    n_kv_head: Count = Field(description="key and value heads: n_head, fewer (GQA) or 1 (MQA)")
    d_head: Count = Field(description="width of one head")
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "shared", "separate", "joint"] = Field(
        "none",
        description="normalises queries and keys: with one scale of d_head that all heads share, "
        "a separate one for each head, or jointly over all heads' channels",
    )
    qk_norm_bias: bool = Field(False, description="the norms of queries and keys add a bias")
    sinks: bool = Field(
        False,
        description="attention sinks: a learned logit per head that absorbs probability (gpt-oss)",
    )

    attention_gate: bool = Field(
        False,
        description="a projection of the states, through a sigmoid, gates the result of attention "
        "before the output projection",
    )

    derived: ClassVar[dict[str, str]] = {"n_kv_head": "n_head", "d_head": "d_model / n_head"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_head % n_kv_head == 0",
            "n_kv_head = {n_kv_head} does not divide n_head = {n_head}; "
            "each key–value head serves the same number of query heads",
        ),
        Constraint(
            "norm == 'layernorm' and norm_scale and qk_norm != 'none'",
            "qk_norm_bias = true needs norm: layernorm, norm_scale: true and a qk_norm; here "
            "norm: {norm}, norm_scale: {norm_scale}, qk_norm: {qk_norm}",
            when="qk_norm_bias",
        ),
    )


FIELDS = AttentionFields


PRESENT = "'attention' in {0} or 'sliding_attention' in {0}"
"""Whether a pattern has attention, with a window or without."""
SWITCHES = ("query_bias", "key_bias", "value_bias", "output_bias", "sinks", "attention_gate")
OPTIONS = {
    **{name: f"{name} = true" for name in SWITCHES},
    "qk_norm != 'none'": "qk_norm: {qk_norm}",
    f"position in {MASKS}": "position: {position}",
}
"""Options that only attention has, and how a message names them."""
CONSTRAINTS = (
    *(
        Constraint(
            PRESENT.format("first(mixers, n_layer)"),
            f"{given} needs attention in mixers, which are '{{mixers}}'",
            when=option,
        )
        for option, given in OPTIONS.items()
    ),
    Constraint(
        "position == 'rotary' and d_rotary <= d_head",
        "d_rotary = {d_rotary} needs position: rotary and at most d_head = {d_head} channels; "
        "position: {position}",
        when="d_rotary",
    ),
    *(
        Constraint(
            f"{name} % 2 == 0",
            f"{name} = {{{name}}} is odd; position: rotary rotates pairs of channels",
            when=f"position == 'rotary' and {is_used} and ({PRESENT.format('mixers')})",
        )
        for name, is_used in (("d_rotary", "d_rotary"), ("d_head", "not d_rotary"))
    ),
)


def no_mask_on_scores(a: Fields, r: Run):
    """ALiBi, T5's buckets and relative positions add to the scores."""
    return int(a.position not in MASKS)


def no_sinks(a: Fields, r: Run):
    """Sinks add a key to the scores."""
    return 1 - a.sinks


def parameters(a: Fields) -> Values:
    """Four projections (Vaswani et al. 2017, §3.2.2; grouped heads: Ainslie et al. 2023, §2.2).

    Queries and output have n_head heads of d_head, keys and values n_kv_head of them. One matrix
    or three makes no difference to the count. Norms of queries and keys: Dehghani et al. 2023,
    §2 (a scale shared by the heads: Qwen 3; one for each head: StableLM 2 12B; over all heads:
    OLMo 2). Sinks: gpt-oss model card. Gate: Qiu et al. 2025 (Gated Attention), §2.2; Qwen3-Next's
    code has it in the query's matrix.
    """
    d_query = a.n_head * a.d_head
    d_key = a.n_kv_head * a.d_head
    of_query = {"none": 0, "shared": a.d_head, "separate": d_query, "joint": d_query}
    of_key = {"none": 0, "shared": a.d_head, "separate": d_key, "joint": d_key}
    return {
        "query": a.d_model * d_query + a.query_bias * d_query,
        "gate": a.attention_gate * (a.d_model * d_query + a.query_bias * d_query),
        "key": a.d_model * d_key + a.key_bias * d_key,
        "value": a.d_model * d_key + a.value_bias * d_key,
        "output": d_query * a.d_model + a.output_bias * a.d_model,
        "query_norm": (a.norm_scale + a.qk_norm_bias) * of_query[a.qk_norm],
        "key_norm": (a.norm_scale + a.qk_norm_bias) * of_key[a.qk_norm],
        "sinks": a.sinks * a.n_head,
        **_relative_positions(a),
    }


def _relative_positions(a: Fields) -> Values:
    """Count the parameters of Transformer-XL's relative positions, if the family has them.

    A fifth matrix, from sinusoids of the distance to keys, and two query biases, u for content and
    v for position (Dai et al. 2019, §3.3).
    """
    if getattr(a, "position", "none") != "relative":
        return {}
    d_query = a.n_head * a.d_head
    return {
        "position": a.d_model * d_query,
        "content_bias": d_query,
        "position_bias": d_query,
    }


@valid_if(no_mask_on_scores, no_sinks)
def tensors(a: Fields) -> list[Tensor]:
    """Weights and biases of the projections, then scales and biases of the norms."""
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    found = [
        *linear_tensors("query", a.d_model, query, a.query_bias),
        Tensor("gate", a.d_model * query, a.attention_gate),
        Tensor("gate", query, a.attention_gate * a.query_bias),
        *linear_tensors("key", a.d_model, key, a.key_bias),
        *linear_tensors("value", a.d_model, key, a.value_bias),
        *linear_tensors("output", query, a.d_model, a.output_bias),
    ]
    if a.qk_norm != "none":
        n_query, n_key = (1, 1) if a.qk_norm == "shared" else (a.n_head, a.n_kv_head)
        for name, n in (("query_norm", n_query), ("key_norm", n_key)):
            found += [Tensor(name, n * a.d_head, one) for one in (a.norm_scale, a.qk_norm_bias)]
    return found


@valid_if(no_mask_on_scores, no_sinks)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    The input, which query, key and value share; inputs of the norms of queries and keys; RoPE's
    tables; scaled dot-product attention (`core`); the input of the output projection, where it is a
    copy. A gate saves its value, and the result that it multiplies in place of the projection.
    """
    query = bytes_of(r.dtype) * tokens(r) * a.n_head * a.d_head
    result, gated = attention_core.copied_result(heads(a), r), a.attention_gate
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "query_norm": _saved_by_head_norm(a, r, a.n_head),
        "key_norm": _saved_by_head_norm(a, r, a.n_kv_head),
        "": 2 * _rope(a) * rope.tables(r, _d_rotary(a)) + gated * (query + result),
        "core": attention_core.saved(heads(a), r),
        "output": result + gated * (query - result),
    }


def heads(a: Fields) -> attention_core.Heads:
    """Return the inputs of scaled dot-product attention."""
    return attention_core.Heads(a.n_head, a.n_kv_head, a.d_head, a.d_head, a.d_head, _rope(a))


def _rope(a: Fields) -> int:
    return int(a.position == "rotary")


def _d_rotary(a: Fields):
    return a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head


def _saved_by_head_norm(a: Fields, r: Run, n_head):
    if a.qk_norm == "none":
        return 0
    states = bytes_of(r.dtype) * tokens(r) * n_head * a.d_head
    by_norm = norm.saved(a, r, n_head * a.d_head, _vectors(a, tokens(r), n_head))
    return by_norm + _scaled_apart(a, r) * states


def _vectors(a: Fields, n_token, n_head):
    return n_token * (1 if a.qk_norm == "joint" else n_head)


def _scaled_apart(a: Fields, r: Run):
    """1 where the scale is a multiplication of its own after the norm, and saves its input."""
    return int(a.qk_norm == "separate") * (1 - norm.is_composed(a, r)) * a.norm_scale


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the KV cache: one key and one value for every KV head and token.

    Shazeer 2019, §3; Ainslie et al. 2023, §2.2.
    """
    return {"": bytes_of(r.dtype) * 2 * tokens(r) * a.n_kv_head * a.d_head}


@valid_if(no_mask_on_scores, no_sinks)
def flops(a: Fields, r: Run, products=attention_core.FORWARD_PRODUCTS) -> Values:
    """Count the FLOPs of a forward pass.

    Projections, and scaled dot-product attention (`core`): queries by keys and scores by values,
    2·length² operations a channel each; a causal mask saves none of them here. `products`: twice
    the number of these products.
    """
    n, d_query, d_key = tokens(r), a.n_head * a.d_head, a.n_kv_head * a.d_head
    return {
        "query": 2 * n * a.d_model * d_query,
        "gate": a.attention_gate * 2 * n * a.d_model * d_query,
        "key": 2 * n * a.d_model * d_key,
        "value": 2 * n * a.d_model * d_key,
        "output": 2 * n * d_query * a.d_model,
        "core": products * n * r.length * d_query,
    }


@valid_if(no_mask_on_scores, no_sinks)
def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors."""
    return doubled(flops(a, r, attention_core.backward_products(r)))


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Count the FLOPs that activation checkpointing repeats.

    Selective: scaled dot-product attention; full: the whole part (Korthikanti et al. 2022, §5).
    """
    if r.recompute == "selective":
        return {"core": flops(a, r, attention_core.recomputed_products(r))["core"]}
    return flops(a, r) if r.recompute == "full" else {}


@valid_if(no_mask_on_scores, no_sinks)
def flops_decode(a: Fields, r: Run) -> Values:
    """Projections of one token; its query meets the keys of all tokens."""
    of_one = flops(a, one_token(r))
    return of_one | {"core": r.length * of_one["core"]}


@valid_if(no_mask_on_scores, no_sinks)
def forward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Return the timeline of the forward pass, from the input to the output and all that is saved.

    Projections, norms, RoPE, the mask of a window that hides some scores (`hides` 1), scaled
    dot-product attention, a copy of its result that is contiguous per token, the output projection.
    """
    held = saved(a, r)
    size, n, math = bytes_of(r.dtype), tokens(r), int(r.attention_kernel == "math")
    query, key = (size * n * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    copied = attention_core.result_apart(heads(a), r) * query
    of_query, of_key, of_value = attention_core.kept_inputs(heads(a), r)
    freed = (1 - of_query) * query + (2 - of_key - of_value) * key + math * copied
    mask, distances = (
        attention_core.mask_of_window(r, hides),
        hides * DISTANCE * r.length * r.length,
    )
    freed += int(r.recompute != "selective") * mask
    gate = [
        Allocation("gate", query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query),
    ]
    return [
        Allocation("query, key, value", query + 2 * key + held["query_norm"] + held["key_norm"]),
        *times(_rope(a), rope.forward(r, a.n_head, a.d_head, _d_rotary(a))),
        *times(_rope(a), rope.forward(r, a.n_kv_head, a.d_head, _d_rotary(a))),
        Allocation("query and key before RoPE", 0, _rope(a) * (query + key)),
        Allocation("mask of the window", 2 * mask + distances, mask + distances),
        *attention_core.forward(heads(a), r, hides),
        Allocation("result contiguous per token", copied),
        *times(a.attention_gate, gate),
        Allocation("output", size * n * a.d_model, freed),
    ]


@valid_if(no_mask_on_scores, no_sinks)
def backward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Output projection, gate, core, RoPE; then value, key and query, each with its norm.

    `hides`: as in forward.
    """
    held = saved(a, r)
    size, states = bytes_of(r.dtype), bytes_of(r.dtype) * tokens(r) * a.d_model
    query = size * tokens(r) * a.n_head * a.d_head
    output = size * a.n_head * a.d_head * a.d_model, size * a.output_bias * a.d_model, query
    early = computed_again(r)
    saved_input = states, early * (1 - place.is_first)
    result, others = attention_core.copied_result(heads(a), r), place.others
    gate = [
        Allocation("gated result gradients", 2 * query, query + result),
        Allocation("sigmoid gradient", query, 2 * query),
        *_projection("gate", a, r, a.n_head, a.query_bias),
        *times(others, accumulate(states)),
    ]
    return [
        *linear_backward("output", *output, place.given, held["output"], early),
        *times(a.attention_gate, gate),
        *attention_core.backward(heads(a), r, hides),
        *times(_rope(a), rope.backward(r, a.n_kv_head, a.d_head, _d_rotary(a))),
        *times(_rope(a), rope.backward(r, a.n_head, a.d_head, _d_rotary(a))),
        *_projection("value", a, r, a.n_kv_head, a.value_bias),
        *times(1 - (1 - others) * (1 - a.attention_gate), accumulate(states)),
        *_head_norm_backward(a, r, a.n_kv_head),
        *_projection("key", a, r, a.n_kv_head, a.key_bias),
        *accumulate(states),
        *_head_norm_backward(a, r, a.n_head),
        *_projection("query", a, r, a.n_head, a.query_bias, *saved_input),
        *accumulate(states),
    ]


def _projection(name: str, a: Fields, r: Run, n_head, bias, saved_input=0, early=0) -> Timeline:
    """Return the timeline of the gradients of a projection's weight, bias and input.

    The gradient of the heads may be copied first, to be contiguous per token; fewer bytes are live
    then than in the attention before.
    """
    size, width = bytes_of(r.dtype), n_head * a.d_head
    states, heads = size * tokens(r) * a.d_model, size * tokens(r) * width
    weight, bias = size * width * a.d_model, size * bias * width
    return linear_backward(name, weight, bias, states, heads, saved_input, early)


def _head_norm_backward(a: Fields, r: Run, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    size, width = bytes_of(r.dtype), n_head * a.d_head
    of_one = size * (a.d_head if a.qk_norm == "shared" else width)
    of_scale, of_bias = a.norm_scale * of_one, a.qk_norm_bias * of_one
    states = size * tokens(r) * width
    if norm.is_composed(a, r):
        rms = exact_bytes(r.dtype) * _vectors(a, tokens(r), n_head)
        return norm.composed_backward(a, r, states, rms, of_scale)
    apart = _scaled_apart(a, r)
    scale = [
        Allocation("head norm bias gradient", of_bias),
        *norm.scale_backward(r, states, of_scale),
    ]
    by_norm = _saved_by_head_norm(a, r, n_head) - apart * states
    with_norm = (1 - apart) * (of_scale + of_bias)
    return [
        *times(apart, scale),
        Allocation("head norm gradient", states + with_norm, states + by_norm),
    ]


@valid_if(no_mask_on_scores, no_sinks)
def inference(a: Fields, r: Run, new) -> Timeline:
    """Projections, RoPE, the core, the output. Keys and values move into the cache."""
    query = bytes_of(r.dtype) * r.batch * new * a.n_head * a.d_head
    key = bytes_of(r.dtype) * r.batch * new * a.n_kv_head * a.d_head
    by_head = positive(a.n_head - 1) * positive(new - 1)
    query_copied = (1 - _rope(a)) * positive(r.batch - 1) * by_head
    copied = by_head * {"math": 1, "flash": _rope(a), "efficient": 0}[r.attention_kernel]
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    gate = [
        Allocation("gate", query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query, (1 + copied) * query),
    ]
    freed = (2 + copied + a.attention_gate * (1 - copied)) * query
    rotated = [
        *rope.inference(r, new, a.n_head, _d_rotary(a), query),
        *rope.inference(r, new, a.n_kv_head, _d_rotary(a), key),
        Allocation("query and key before RoPE", 0, query + key),
    ]
    return [
        Allocation("query", query),
        *_head_norm_inference(a, r, new, a.n_head),
        Allocation("key", key),
        *_head_norm_inference(a, r, new, a.n_kv_head),
        Allocation("value", key),
        *times(_rope(a), rotated),
        Allocation("key and value in the cache", 0, 2 * key),
        *attention_core.inference(heads(a), r, new, query_copied, 0),
        Allocation("result contiguous per token", copied * query),
        *times(a.attention_gate, gate),
        Allocation("output", states, freed),
    ]


def _head_norm_inference(a: Fields, r: Run, new, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    width = n_head * a.d_head
    states = bytes_of(r.dtype) * r.batch * new * width
    vectors = _vectors(a, r.batch * new, n_head)
    freed = Allocation("heads before the norm", 0, states)
    if a.qk_norm != "separate":
        return [*norm.inference(a, r, new, width, vectors=vectors), freed]
    return [
        *norm.inference(a, r, new, width, scaled=0, vectors=vectors),
        *times(a.norm_scale, [Allocation("head norm scale", states, states)]),
        *times(a.qk_norm_bias, [Allocation("head norm bias", states, states)]),
        freed,
    ]
