"""Multi-head attention of encoders and encoder–decoders.

Every query head has its own keys and values, of its own sequence or of another (cross-attention).
"""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts


class MultiHeadFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Parts = Field(description="heads, each with its own queries, keys and values")
    d_head: Count = Field(description="width of one head's queries and keys")
    d_value: Count = Field(description="width of one head's values")
    attention_bias: bool = Field(True, description="all four projections add a bias")

    derived: ClassVar[dict[str, str]] = {"d_head": "d_model / n_head", "d_value": "d_head"}


def parameters(a) -> dict:
    """Count the parameters of the four projections (Vaswani et al. 2017, §3.2.2).

    W^Q and W^K have d_k columns a head, W^V has d_v.
    """
    d_query, d_value = a.n_head * a.d_head, a.n_head * a.d_value
    query = a.d_model * d_query + a.attention_bias * d_query
    return {
        "query": query,
        "key": query,
        "value": a.d_model * d_value + a.attention_bias * d_value,
        "output": d_value * a.d_model + a.attention_bias * a.d_model,
    }
