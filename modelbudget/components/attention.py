"""Attention: query, key, value and output projections, with fewer key–value heads if wanted."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Architecture, Count


class AttentionFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Count = Field(description="query heads")
    n_kv_head: Count = Field(description="key and value heads: n_head, fewer (grouped) or 1")
    d_head: Count = Field(description="width of one head")
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False

    derived: ClassVar[dict[str, str]] = {"n_kv_head": "n_head", "d_head": "d_model / n_head"}

    @model_validator(mode="after")
    def heads_share_keys_evenly(self) -> Self:
        if self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_kv_head = {self.n_kv_head} does not divide n_head = {self.n_head}; "
                "each key–value head serves the same number of query heads"
            )
        return self


def parameters(a) -> dict:
    """Four projections (Vaswani et al. 2017, §3.2.2; grouped heads: Ainslie et al. 2023, §2.2).

    Queries and output have n_head heads of d_head, keys and values n_kv_head of them. One matrix
    or three makes no difference to the count.
    """
    d_query = a.n_head * a.d_head
    d_key = a.n_kv_head * a.d_head
    return {
        "query": a.d_model * d_query + a.query_bias * d_query,
        "key": a.d_model * d_key + a.key_bias * d_key,
        "value": a.d_model * d_key + a.value_bias * d_key,
        "output": d_query * a.d_model + a.output_bias * a.d_model,
    }
