"""Attention: query, key, value and output projections, with fewer key–value heads if wanted."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import bytes_of, computed_again, exact_bytes, tokens
from modelbudget.components import attention_core, norm, rope
from modelbudget.components.norm import NormFields
from modelbudget.memory.timeline import Node, added, linear, times

DISTANCE = 8 + 1
"""Bytes of how far a key lies behind a query, and of whether that is out of sight."""


class AttentionFields(NormFields):
    n_head: Parts = Field(description="query heads")
    n_kv_head: Count = Field(description="key and value heads: n_head, fewer (grouped) or 1")
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
    qk_norm_bias: bool = Field(False, description="the norms of queries and keys add a shift")
    sinks: bool = Field(False, description="each query head may look at nothing: a learned logit")

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


def parameters(a) -> dict:
    """Four projections (Vaswani et al. 2017, §3.2.2; grouped heads: Ainslie et al. 2023, §2.2).

    Queries and output have n_head heads of d_head, keys and values n_kv_head of them. One matrix
    or three makes no difference to the count. Norms of queries and keys: Dehghani et al. 2023,
    §2 (a scale shared by the heads: Qwen 3; one for each head: StableLM 2 12B; over all heads:
    OLMo 2). Sinks: gpt-oss model card.
    """
    d_query = a.n_head * a.d_head
    d_key = a.n_kv_head * a.d_head
    of_query = {"none": 0, "shared": a.d_head, "separate": d_query, "joint": d_query}
    of_key = {"none": 0, "shared": a.d_head, "separate": d_key, "joint": d_key}
    return {
        "query": a.d_model * d_query + a.query_bias * d_query,
        "key": a.d_model * d_key + a.key_bias * d_key,
        "value": a.d_model * d_key + a.value_bias * d_key,
        "output": d_query * a.d_model + a.output_bias * a.d_model,
        "query_norm": (a.norm_scale + a.qk_norm_bias) * of_query[a.qk_norm],
        "key_norm": (a.norm_scale + a.qk_norm_bias) * of_key[a.qk_norm],
        "sinks": a.sinks * a.n_head,
    }


def tensors(a) -> dict:
    """A matrix and a bias, where it has one, are a tensor each."""
    of_norm = int(a.qk_norm != "none") * (a.norm_scale + a.qk_norm_bias)
    return {
        "query": 1 + a.query_bias,
        "key": 1 + a.key_bias,
        "value": 1 + a.value_bias,
        "output": 1 + a.output_bias,
        "query_norm": of_norm,
        "key_norm": of_norm,
        "sinks": a.sinks,
    }


def saved(a, r) -> dict:
    """Bytes that backward needs: the input, which query, key and value share; inputs of the norms
    of queries and keys; the core; the input of the output projection, where it is a copy.
    """
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "query_norm": _norm_of_heads(a, r, a.n_head),
        "key_norm": _norm_of_heads(a, r, a.n_kv_head),
        "": 2 * _turned(a) * rope.tables(r, _d_turned(a)),
        "core": attention_core.saved(heads(a), r),
        "output": attention_core.copied_result(heads(a), r),
    }


def heads(a) -> attention_core.Heads:
    return attention_core.Heads(a.n_head, a.n_kv_head, a.d_head, a.d_head, a.d_head, _turned(a))


def _turned(a) -> int:
    return int(a.position == "rotary")


def _norm_of_heads(a, r, n_head):
    if a.qk_norm == "none":
        return 0
    heads = bytes_of(r.dtype) * tokens(r) * n_head * a.d_head
    kept = norm.saved(a, r, n_head * a.d_head, _vectors(a, r, n_head))
    return kept + _scaled_apart(a, r) * heads


def _vectors(a, r, n_head):
    return tokens(r) * (1 if a.qk_norm == "joint" else n_head)


def _scaled_apart(a, r):
    """1 where scales are not the norm operation's but a product of their own, which keeps what it
    scales.
    """
    return int(a.qk_norm == "separate") * (1 - norm.is_composed(a, r)) * a.norm_scale


def _d_turned(a):
    return a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head


def cached(a, r):
    """Bytes of keys and values: one of each for every key–value head and token (Shazeer 2019, §3;
    Ainslie et al. 2023, §2.2).
    """
    return bytes_of(r.dtype) * 2 * tokens(r) * a.n_kv_head * a.d_head


def cached_locally(a, r):
    """Those of the last `window` tokens, or of all while there are fewer (Jiang et al. 2023, §2:
    rolling buffer cache).
    """
    n = a.window - positive(a.window - r.length) * (a.window - r.length)
    return bytes_of(r.dtype) * 2 * r.batch * n * a.n_kv_head * a.d_head


def flops(a, r, products=4) -> dict:
    """Projections, and the core: queries by keys and scores by values, 2·length² operations a
    channel each, of which a causal mask saves none here.

    `products`: twice the number of such products.
    """
    n, d_query, d_key = tokens(r), a.n_head * a.d_head, a.n_kv_head * a.d_head
    return {
        "query": 2 * n * a.d_model * d_query,
        "key": 2 * n * a.d_model * d_key,
        "value": 2 * n * a.d_model * d_key,
        "output": 2 * n * d_query * a.d_model,
        "core": products * n * r.length * d_query,
    }


def relative_positions(a) -> dict:
    """What attention adds to see distances: a fifth matrix, from sinusoids of the distance to
    keys, and two query biases, u for content and v for position (Dai et al. 2019, §3.3).
    """
    d_query = a.n_head * a.d_head
    return {
        "position": a.d_model * d_query,
        "content_bias": d_query,
        "position_bias": d_query,
    }


def forward(a, r, hides=0) -> list[Node]:
    """From the input, which lives already, to the output and all that backward needs: projections,
    norms, rotation, the mask of a window that hides some scores (`hides` 1), core, a copy of its
    result token by token, the output projection.
    """
    held = saved(a, r)
    size, n, math = bytes_of(r.dtype), tokens(r), int(r.attention_kernel == "math")
    query, key = (size * n * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    copied = attention_core.result_apart(heads(a), r) * query
    turned = _turned(a) * (query + key)
    turning = a.d_head, _d_turned(a)
    of_query, of_key, of_value = attention_core.kept_of_given(heads(a), r)
    dropped = (1 - of_query) * query + (2 - of_key - of_value) * key + math * copied
    mask, distances = attention_core.owned_mask(r, hides), hides * DISTANCE * r.length * r.length
    dropped += int(r.recompute != "selective") * mask
    return [
        (query + 2 * key + held["query_norm"] + held["key_norm"], 0),
        *times(_turned(a), rope.forward(r, a.n_head, *turning)),
        *times(_turned(a), rope.forward(r, a.n_kv_head, *turning)),
        (0, turned),
        (2 * mask + distances, mask + distances),
        *attention_core.forward(heads(a), r, hides),
        (copied, 0),
        (size * n * a.d_model, dropped),
    ]


def backward(a, r, given, others=0, is_first=0, hides=0) -> list[Node]:
    """From the gradient of the output, of which the last reader frees `given` bytes, to that of
    the input. Where others (1 or 0) read it too, their gradient is there already. `is_first`: 1 if
    it is what a layer that is computed again begins with. `hides`: as forward.

    Output, core, rotation; then value, key and query, each with its norm.
    """
    held = saved(a, r)
    size, states = bytes_of(r.dtype), bytes_of(r.dtype) * tokens(r) * a.d_model
    query = size * tokens(r) * a.n_head * a.d_head
    output = size * a.n_head * a.d_head * a.d_model, size * a.output_bias * a.d_model, query
    early = computed_again(r)
    kept = states, early * (1 - is_first)
    turning = a.d_head, _d_turned(a)
    return [
        *linear(*output, given, held["output"], early),
        *attention_core.backward(heads(a), r, hides),
        *times(_turned(a), rope.backward(r, a.n_kv_head, *turning)),
        *times(_turned(a), rope.backward(r, a.n_head, *turning)),
        *_projection(a, r, a.n_kv_head, a.value_bias),
        *times(others, added(states)),
        *_head_norm(a, r, a.n_kv_head),
        *_projection(a, r, a.n_kv_head, a.key_bias),
        *added(states),
        *_head_norm(a, r, a.n_head),
        *_projection(a, r, a.n_head, a.query_bias, *kept),
        *added(states),
    ]


def _projection(a, r, n_head, bias, saved=0, early=0) -> list[Node]:
    """The gradient of the heads gives those of a matrix and of the states. It may be copied first,
    to lie token by token, where less lives than in the core before.
    """
    size, width = bytes_of(r.dtype), n_head * a.d_head
    states, heads = size * tokens(r) * a.d_model, size * tokens(r) * width
    return linear(size * width * a.d_model, size * bias * width, states, heads, saved, early)


def _head_norm(a, r, n_head) -> list[Node]:
    if a.qk_norm == "none":
        return []
    size, width = bytes_of(r.dtype), n_head * a.d_head
    of_one = size * (a.d_head if a.qk_norm == "shared" else width)
    of_scale, of_shift = a.norm_scale * of_one, a.qk_norm_bias * of_one
    heads = size * tokens(r) * width
    if norm.is_composed(a, r):
        rms = exact_bytes(r.dtype) * _vectors(a, r, n_head)
        return norm.composed(a, r, heads, rms, of_scale)
    apart = _scaled_apart(a, r)
    product = [(of_shift, 0), *norm.scaled(r, heads, of_scale)]
    kept = _norm_of_heads(a, r, n_head) - apart * heads
    with_norm = (1 - apart) * (of_scale + of_shift)
    return [*times(apart, product), (heads + with_norm, heads + kept)]
