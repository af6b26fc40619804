"""Attention: query, key, value and output projections, with fewer key–value heads if wanted."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Count
from modelbudget.components import norm
from modelbudget.components.norm import NormFields
from modelbudget.operations import ceil_div, positive
from modelbudget.run import bytes_of, exact_bytes, mask_bytes, tokens

SEEDS = 24
"""Bytes of the random state that a GPU's flash attention keeps, with dropout or without."""
TWO_SEEDS = 16
"""The same of memory-efficient attention."""
SUM = 4
"""Bytes of the logarithm of a row's sum, there."""


class AttentionFields(NormFields):
    n_head: Count = Field(description="query heads")
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

    @model_validator(mode="after")
    def heads_share_keys_evenly(self) -> Self:
        if self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_kv_head = {self.n_kv_head} does not divide n_head = {self.n_head}; "
                "each key–value head serves the same number of query heads"
            )
        return self

    @model_validator(mode="after")
    def query_shift_needs_norm(self) -> Self:
        shifted = self.norm == "layernorm" and self.norm_scale and self.qk_norm != "none"
        if self.qk_norm_bias and not shifted:
            raise ValueError(
                f"qk_norm_bias = true needs norm: layernorm, norm_scale: true and a qk_norm; "
                f"here norm: {self.norm}, norm_scale: {str(self.norm_scale).lower()}, "
                f"qk_norm: {self.qk_norm}"
            )
        return self


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
    heads = bytes_of(r.dtype) * tokens(r) * a.n_head * a.d_head
    # Flash attention's result takes the order in memory of its queries. Rotation leaves them head
    # by head; the output projection wants them token by token, so it copies. Memory-efficient
    # attention writes token by token.
    turned = int(a.position == "rotary") * positive(a.n_head - 1) * positive(r.length - 1)
    kept_by_core = int(r.attention != "math" and r.recompute != "selective")
    turned *= int(r.attention == "flash")
    core = {"math": _math, "flash": _flash, "efficient": _efficient}[r.attention]
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "query_norm": _norm_of_heads(a, r, a.n_head),
        "key_norm": _norm_of_heads(a, r, a.n_kv_head),
        "": _rotation(a, r),
        "core": (_inputs if r.recompute == "selective" else core)(a, r),
        "output": (1 - kept_by_core * (1 - turned)) * heads,
    }


def _norm_of_heads(a, r, n_head):
    if a.qk_norm == "none":
        return 0
    vectors = tokens(r) * (1 if a.qk_norm == "joint" else n_head)
    states = norm.saved(a, r, n_head * a.d_head, vectors)
    if a.qk_norm == "separate" and not (a.norm == "rmsnorm" and r.kernels == "cpu"):
        # Its scales are not the norm operation's but a product of their own, which saves as much.
        states += a.norm_scale * bytes_of(r.dtype) * tokens(r) * n_head * a.d_head
    return states


def _rotation(a, r):
    """Sines and cosines, of half the turned channels each, for queries and once more for keys."""
    d_turned = a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head
    return int(a.position == "rotary") * bytes_of(r.dtype) * 2 * r.length * d_turned


def _inputs(a, r):
    """Queries, keys and values: all that is kept of a core that is computed again."""
    return bytes_of(r.dtype) * tokens(r) * (a.n_head + 2 * a.n_kv_head) * a.d_head


def _math(a, r):
    """Queries, keys and values, the last two repeated for each query head, and the softmax of the
    scores, length² for each head: all in at least single precision. With dropout, what is left of
    the softmax and what was dropped.
    """
    heads = tokens(r) * a.n_head * a.d_head
    scores = r.batch * a.n_head * r.length * r.length
    exact = exact_bytes(r.dtype)
    dropped = r.dropout * (exact + mask_bytes(r.kernels, exact))
    return exact * 3 * heads + (exact + dropped) * scores


def _flash(a, r):
    """Queries, keys, values, the result, and the logarithm of each row's sum (Dao et al. 2022,
    §3.1): the scores are computed again in the backward pass, and with them what is dropped.
    """
    result = bytes_of(r.dtype) * tokens(r) * a.n_head * a.d_head
    sums = exact_bytes(r.dtype) * r.batch * a.n_head * r.length
    return _inputs(a, r) + result + sums + int(r.kernels == "gpu") * SEEDS


def _efficient(a, r):
    """As flash attention (Rabe & Staats 2021, §3), with keys and values repeated for each query
    head, and rows padded to a multiple of 32.
    """
    heads = bytes_of(r.dtype) * tokens(r) * a.n_head * a.d_head
    sums = SUM * r.batch * a.n_head * 32 * ceil_div(r.length, 32)
    return 4 * heads + sums + TWO_SEEDS


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
