"""Attention: query, key, value and output projections, with fewer key–value heads if wanted."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Count
from modelbudget.components.norm import NormFields


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
